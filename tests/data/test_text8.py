"""text8: alphabet, the three ways to get it, and which one was taken."""

import hashlib
import http.server
import io
import lzma
import threading
import zipfile

import numpy as np
import pytest

from sbdjax.data import text8
from sbdjax.data.text8_tokenizer import Text8Tokenizer
from sbdjax.errors import DataError, UsageError
from tests.helpers import require_shared

TEXT = text8.embedded_slice()[:5000]


def zip_of(text):
  buffer = io.BytesIO()
  with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("text8", text)
  return buffer.getvalue()


@pytest.fixture
def serve():
  """Serves bytes over HTTP; yields publish(bytes) -> url and the list of requests."""
  state = dict(data=b"", requests=[])

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      state["requests"].append(self.path)
      self.send_response(200)
      self.end_headers()
      self.wfile.write(state["data"])

    def log_message(self, *_):
      pass

  server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
  thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
  thread.start()

  def publish(data):
    state["data"] = data
    return f"http://127.0.0.1:{server.server_port}/text8.zip"

  yield publish, state["requests"]
  server.shutdown()
  server.server_close()
  thread.join()


def archive_at(url, text, data):
  return text8.Archive(url, len(data), len(text), hashlib.md5(text.encode()).hexdigest())


def test_official_archive_is_the_published_one():
  assert text8.OFFICIAL.url == "http://mattmahoney.net/dc/text8.zip"
  assert (text8.OFFICIAL.zip_bytes, text8.OFFICIAL.characters) == (31_344_016, 100_000_000)


def test_embedded_slice_is_the_beginning_of_text8():
  reference = lzma.open(require_shared("data", "text8", "text8_6400k.xz"), "rt").read()
  assert len(text8.embedded_slice()) == 1_000_000
  assert reference.startswith(text8.embedded_slice())


def test_alphabet_round_trip():
  tokenizer = Text8Tokenizer()
  assert tokenizer.vocab_size == 27
  assert tokenizer.encode(" abz") == [0, 1, 2, 26]
  ids = tokenizer.encode_batch([TEXT])[0]
  assert ids.dtype == np.uint8 and tokenizer.decode(ids) == TEXT
  stream = tokenizer.stream()
  assert "".join(map(stream.push, ids[:50])) == TEXT[:50]
  tokenizer.mask_id = 27
  assert tokenizer.decode([1, 27, 2, 99]) == "ab\ufffd"
  assert tokenizer.decode([1, 27, 2], show_mask="_") == "a_b"


@pytest.mark.parametrize("text", ["abc Def", "abc?", "abé", "日本"])
def test_other_characters_are_named(text):
  wrong = next(c for c in text if c not in " abcdefghijklmnopqrstuvwxyz")
  with pytest.raises(DataError, match=f"offset {text.index(wrong)} ") as error:
    Text8Tokenizer().encode(text)
  assert repr(wrong) in str(error.value)
  with pytest.raises(UsageError, match="no bos or eos"):
    Text8Tokenizer().encode("abc", bos=True)


def test_fetched_once_verified_and_cached(serve, tmp_path):
  publish, requests = serve
  data = zip_of(TEXT)
  archive = archive_at(publish(data), TEXT, data)
  for _ in range(2):
    text, origin = text8.load(cache_dir=str(tmp_path), archive=archive)
    assert text == TEXT and "full text8" in origin and str(tmp_path) in origin
  assert requests == ["/text8.zip"]
  assert [p.name for p in tmp_path.iterdir()] == ["text8.zip"]


@pytest.mark.parametrize(
  "served",
  [
    lambda d: d[:-1],
    lambda d: d + b"!",
    lambda d: b"<html>",
    lambda d: b"x" * len(d),
    lambda d: b"",
  ],
  ids=["cut", "longer", "html", "not a zip", "empty"],
)
def test_a_wrong_download_is_not_kept(serve, tmp_path, caplog, served):
  publish, _ = serve
  data = zip_of(TEXT)
  archive = archive_at(publish(served(data)), TEXT, data)
  text, origin = text8.load(cache_dir=str(tmp_path), archive=archive)
  assert text == text8.embedded_slice() and origin.startswith("embedded slice")
  assert "not comparable" in origin and "using the embedded slice" in caplog.text
  assert not list(tmp_path.iterdir())
  with pytest.raises(DataError, match="no full text8"):
    text8.load(cache_dir=str(tmp_path), archive=archive, embedded=False)


def test_another_text_of_the_right_size_is_refused(serve, tmp_path, caplog):
  publish, _ = serve
  data = zip_of(TEXT[::-1])
  archive = archive_at(publish(data), TEXT, data)
  assert text8.load(cache_dir=str(tmp_path), archive=archive)[1].startswith("embedded slice")
  assert "md5" in caplog.text and not list(tmp_path.iterdir())


def test_a_damaged_cache_is_fetched_again(serve, tmp_path, caplog):
  publish, requests = serve
  data = zip_of(TEXT)
  archive = archive_at(publish(data), TEXT, data)
  (tmp_path / "text8.zip").write_bytes(data[:-7])
  _, origin = text8.load(download=False, cache_dir=str(tmp_path), archive=archive)
  assert origin.startswith("embedded slice") and "ignoring" in caplog.text
  assert "full text8" in text8.load(cache_dir=str(tmp_path), archive=archive)[1]
  assert len(requests) == 1 and (tmp_path / "text8.zip").read_bytes() == data


def test_an_unreachable_address_falls_back(tmp_path):
  data = zip_of(TEXT)
  archive = archive_at("http://127.0.0.1:1/text8.zip", TEXT, data)
  assert text8.load(cache_dir=str(tmp_path), archive=archive)[1].startswith("embedded slice")


def test_no_download_when_switched_off(serve, tmp_path):
  publish, requests = serve
  data = zip_of(TEXT)
  archive = archive_at(publish(data), TEXT, data)
  _, origin = text8.load(download=False, cache_dir=str(tmp_path), archive=archive)
  assert origin.startswith("embedded slice") and not requests


@pytest.mark.parametrize("suffix", ["", ".xz", ".zip"])
def test_local_files_say_what_they_are(tmp_path, suffix):
  def write(text):
    path = tmp_path / f"local{suffix}"
    encode = {"": str.encode, ".xz": lambda t: lzma.compress(t.encode()), ".zip": zip_of}[suffix]
    path.write_bytes(encode(text))
    return str(path)

  text, origin = text8.load(write(TEXT + "\n"))
  assert text == TEXT and "first 5,000 characters of text8" in origin
  _, origin = text8.load(write(TEXT[100:]))
  assert "not text8" in origin and "not comparable" in origin
  with pytest.raises(DataError, match="offset 3 "):
    text8.load(write("abc, def"))
  with pytest.raises(DataError, match="cannot read"):
    text8.load(str(tmp_path / "absent"))
