"""text8 as a TFDS dataset in array_record files: written and read without TensorFlow.

  python -m sbdjax.data.tfds_text8 --data_dir=DIR [--path=FILE]

writes it (the full text8 is fetched unless FILE is given); `data.source="tfds:text8"` with
`data.path=DIR` trains on it. The reader serves any TFDS dataset of array_record files that has a
`text` feature.
"""

import argparse
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

from sbdjax.data import text8, tfds_files
from sbdjax.data.config import SPLITS
from sbdjax.data.splits import split_range
from sbdjax.errors import DataError, SbdjaxError

_RECORD_CHARACTERS = 100_000


class Text8(tfds.core.GeneratorBasedBuilder):
  """Consecutive records of 100,000 characters; joined in order they are the split's text.

  Args:
    path: a local text8; default: as `text8.load`, but never the embedded slice.
  """

  VERSION = tfds.core.Version("1.0.0")
  name = "text8"
  # TFDS looks beside the code for checksums of downloads, of which there are none; doing so needs
  # importlib_resources, which it does not declare.
  code_path = None

  def __init__(self, *, path: str = "", **kwargs: Any) -> None:
    self._path = path
    super().__init__(**kwargs)

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description="Matt Mahoney's text8, split 90/5/5 by position.",
      features=tfds.features.FeaturesDict(dict(text=tfds.features.Text())),
      homepage="http://mattmahoney.net/dc/textdata.html",
      # Records are pieces of one text: their order is part of the data.
      disable_shuffling=True,
      metadata=tfds.core.MetadataDict(contiguous=True),
    )

  def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
    del dl_manager
    text, _ = text8.load(self._path, embedded=False)
    ranges = {split: split_range(len(text), split) for split in SPLITS}
    return {split: self._generate_examples(text[a:b]) for split, (a, b) in ranges.items()}

  def _generate_examples(self, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, at in enumerate(range(0, len(text), _RECORD_CHARACTERS)):
      yield number, dict(text=text[at : at + _RECORD_CHARACTERS])


def prepare(data_dir: str, path: str = "") -> None:
  """Writes the array_record files under `data_dir`, unless they are there.

  Raises:
    DataError: text8 cannot be fetched, or `path` cannot be read.
  """
  Text8(path=path, data_dir=data_dir, file_format="array_record").download_and_prepare()


def read_split(name: str, data_dir: str, split: str) -> tuple[list[str], str]:
  """The documents of a prepared dataset, and a sentence saying where they come from.

  Args:
    name: a TFDS name, e.g. "text8" or "my_dataset:1.0.0".
    data_dir: empty: TFDS's default folder.

  Raises:
    DataError: not prepared, no such split, or no `text` feature.
  """
  folder = pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
  tfds_files.check_below(folder / name.split(":")[0].split("/")[0])
  try:
    builder = tfds.builder(name, try_gcs=False, data_dir=data_dir or None)
    records = builder.as_data_source(split=split)
    texts = [record["text"].decode("utf-8") for record in records]
  except Exception as error:  # TFDS raises many kinds, several with pages of advice.
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    where = data_dir or "the default data_dir"
    raise DataError(
      f"cannot read split {split!r} of tfds:{name} under {where} ({reason}); prepare it first, "
      "e.g. python -m sbdjax.data.tfds_text8 --data_dir=DIR"
    ) from error
  contiguous = (builder.info.metadata or {}).get("contiguous", False)
  origin = f"tfds:{name} {builder.version}, {split}: {len(texts)} records in {builder.data_dir}"
  return ["".join(texts)] if contiguous else texts, origin


def main(arguments: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description="Writes text8 as a TFDS dataset.")
  parser.add_argument("--data_dir", required=True)
  parser.add_argument("--path", default="", help="a local text8 (plain, .zip, .xz or .gz)")
  options = parser.parse_args(arguments)
  try:
    prepare(str(pathlib.Path(options.data_dir).expanduser()), options.path)
  except SbdjaxError as error:
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code
  return 0


if __name__ == "__main__":
  sys.exit(main())
