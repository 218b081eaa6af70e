"""text8 through TFDS and array_record, offline and without TensorFlow."""

import subprocess
import sys

import pytest
import tensorflow_datasets as tfds

from sbdjax.data import text8, tfds_text8
from sbdjax.data.config import DataConfig
from sbdjax.data.pipeline import make_eval
from sbdjax.errors import DataError

TEXT = text8.embedded_slice()[:450_000]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tfds")
  (folder / "text8").write_text(TEXT)
  assert tfds_text8.main([f"--data_dir={folder / 'data'}", f"--path={folder / 'text8'}"]) == 0
  return folder / "data"


def test_array_records_hold_the_text_in_order(prepared):
  assert list(prepared.rglob("*.array_record-*"))
  source = tfds.data_source("text8", split="train", data_dir=prepared)
  records = [record["text"].decode() for record in source]
  assert len(records) > 1 and "".join(records) == TEXT[:405_000]
  assert source[1]["text"].decode() == records[1]


def test_pipeline_reads_it(prepared):
  config = DataConfig(
    source="tfds:text8", path=str(prepared), tokenizer="text8", add_bos=False, seq_len=500
  )
  for split, text in (("validation", TEXT[405_000:427_500]), ("test", TEXT[427_500:])):
    batches = make_eval(config, split, batch_size=5)
    read = "".join(batches_text(batch["tokens"][batch["weights"] > 0]) for batch in batches)
    assert read == text and "tfds:text8" in batches.corpus.origin


def batches_text(ids):
  return "".join(" abcdefghijklmnopqrstuvwxyz"[i] for i in ids)


def test_what_is_not_prepared_says_how(prepared, tmp_path):
  for name, folder, split in (
    ("text8", str(tmp_path), "train"),
    ("no_such_dataset", str(tmp_path), "train"),
    ("text8", str(prepared), "nosplit"),
  ):
    with pytest.raises(DataError, match="prepare it first") as error:
      tfds_text8.read_split(name, folder, split)
    assert "\n" not in str(error.value)


def test_preparing_a_wrong_file_fails_in_one_line(tmp_path, capsys):
  (tmp_path / "text8").write_text("Upper case")
  arguments = [f"--data_dir={tmp_path / 'data'}", f"--path={tmp_path / 'text8'}"]
  assert tfds_text8.main(arguments) == 1
  assert "not text8" in capsys.readouterr().err
  assert not list(tmp_path.rglob("*.array_record*"))


def test_no_tensorflow_is_imported(prepared):
  code = (
    "import sys; from sbdjax.data import tfds_text8;"
    f"tfds_text8.read_split('text8', {str(prepared)!r}, 'test');"
    "sys.exit('tensorflow' in sys.modules)"
  )
  subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
