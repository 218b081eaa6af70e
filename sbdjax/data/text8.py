"""text8: a local file, the official archive (fetched once, verified, cached), or a slice of it."""

import dataclasses
import hashlib
import http.client
import io
import logging
import lzma
import os
import pathlib
import urllib.request
import zipfile
import zlib

from sbdjax.data import assets
from sbdjax.data.files import read_bytes, write_atomically
from sbdjax.data.text8_tokenizer import ALPHABET
from sbdjax.errors import DataError

_log = logging.getLogger(__name__)
_SLICE = "text8_1m.xz"
_TIMEOUT_SECONDS = 20
NOT_COMPARABLE = "bits per character are not comparable with published text8 numbers"


@dataclasses.dataclass(frozen=True)
class Archive:
  """Where text8 is published and what makes a download of it whole."""

  url: str = "http://mattmahoney.net/dc/text8.zip"
  zip_bytes: int = 31_344_016
  characters: int = 100_000_000
  md5: str = "3bea1919949baf155f99411df5fada7e"  # Of the text, not of the archive.


OFFICIAL = Archive()


def default_cache_dir() -> pathlib.Path:
  """$SBDJAX_CACHE, else sbdjax under $XDG_CACHE_HOME or ~/.cache."""
  if "SBDJAX_CACHE" in os.environ:
    return pathlib.Path(os.environ["SBDJAX_CACHE"]).expanduser()
  return pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sbdjax"


def embedded_slice() -> str:
  """The first 1,000,000 characters of text8."""
  return lzma.decompress(assets.path(_SLICE).read_bytes()).decode("ascii")


def load(
  path: str = "",
  *,
  download: bool = True,
  cache_dir: str = "",
  embedded: bool = True,
  archive: Archive = OFFICIAL,
) -> tuple[str, str]:
  """Returns the text and a sentence saying which text it is.

  Args:
    path: a local file (plain, .zip, .xz or .gz) in text8's alphabet, of any length. Empty: the
      cached archive; else, with `download`, the official one; else, with `embedded`, the
      embedded slice.

  Raises:
    DataError: `path` cannot be read or has characters outside of text8's alphabet; or nothing is
      left to fall back on.
  """
  if path:
    file = assets.resolve(path)
    text = _check_alphabet(read_bytes(file), str(file)).decode("ascii")
    return text, f"{file}: {_describe(text, archive)}"
  place = pathlib.Path(cache_dir).expanduser() if cache_dir else default_cache_dir()
  cached = place / "text8.zip"
  try:
    text = _cached_or_fetched(cached, download, archive)
    return text, f"{cached}: {_describe(text, archive)}"
  except DataError as error:
    if not embedded:
      raise DataError(f"no full text8 ({error}): pass the path of a local copy") from error
    _log.warning("no full text8 (%s): using the embedded slice", error)
  text = embedded_slice()
  return text, f"embedded slice: {_describe(text, archive)}"


def _describe(text: str, archive: Archive) -> str:
  known = embedded_slice()
  size = f"{len(text):,} characters"
  overlap = min(len(known), len(text))
  if text[:overlap] != known[:overlap]:
    return f"{size} in text8's alphabet that are not text8; {NOT_COMPARABLE}"
  if len(text) == archive.characters:
    return f"the full text8, {size}"
  return f"the first {size} of text8; {NOT_COMPARABLE}"


def _check_alphabet(data: bytes, where: str) -> bytes:
  data = data.rstrip(b"\n")
  rest = data.translate(None, ALPHABET.encode())
  if rest:
    at = data.index(rest[:1])
    raise DataError(
      f"{where} is not text8: byte {rest[:1]!r} at offset {at} is outside of its alphabet "
      "(space and a-z); clean the file, or use data.source='text'"
    )
  return data


def _unzip(data: bytes, archive: Archive) -> bytes:
  """The text in the archive, verified; raises DataError."""
  if len(data) != archive.zip_bytes:
    raise DataError(f"the archive has {len(data):,} bytes instead of {archive.zip_bytes:,}")
  try:
    with zipfile.ZipFile(io.BytesIO(data)) as zipped, zipped.open(zipped.namelist()[0]) as file:
      text = file.read(archive.characters + 1)
  except (zipfile.BadZipFile, IndexError, zlib.error, EOFError, RuntimeError) as error:
    raise DataError(f"the archive is damaged: {error}") from error
  md5 = hashlib.md5(text, usedforsecurity=False).hexdigest()
  if len(text) != archive.characters or md5 != archive.md5:
    raise DataError(f"the archive holds {len(text):,} characters with md5 {md5}, not text8")
  return _check_alphabet(text, archive.url)


def _cached_or_fetched(cached: pathlib.Path, download: bool, archive: Archive) -> str:
  """The verified text; raises DataError."""
  if cached.is_file():
    try:
      return _unzip(read_bytes(cached, decompress=False), archive).decode("ascii")
    except DataError as error:
      _log.warning("ignoring %s: %s", cached, error)
  if not download:
    raise DataError("not in the cache, and data.download is off")
  data = _fetch(archive)
  text = _unzip(data, archive).decode("ascii")
  write_atomically(cached, lambda file: file.write(data))
  return text


def _fetch(archive: Archive) -> bytes:
  """Downloads the archive, unverified; raises DataError."""
  _log.info("fetching text8 (%.0f MB) from %s", archive.zip_bytes / 1e6, archive.url)
  try:
    with urllib.request.urlopen(archive.url, timeout=_TIMEOUT_SECONDS) as response:
      # One byte more than expected is enough to know that it is something else.
      return response.read(archive.zip_bytes + 1)
  except (OSError, ValueError, http.client.HTTPException) as error:
    reason = getattr(error, "reason", error)
    raise DataError(f"{archive.url} cannot be fetched: {reason}") from error
