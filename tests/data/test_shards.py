"""Work that is gone on with: the same settings, wherever the files lie now."""

import json
import os

import pytest

from sbdjax.data import shards
from sbdjax.errors import DataError, UsageError

SETTINGS = {
  "checkpoint": "/old/round1",
  "weights_crc32": 5,
  "prompts": {"path": "/old/text.txt", "seq_len": 9},
  "block_size": 4,
}


def begin(folder, **changes):
  return shards.begin(folder, SETTINGS | changes, "texts", "collect")


def test_a_moved_folder_is_gone_on_with(tmp_path):
  begin(tmp_path / "old")
  (tmp_path / "old").rename(tmp_path / "new")
  moved = {"checkpoint": "/new/round1", "prompts": {"path": "/new/text.txt", "seq_len": 9}}
  assert begin(tmp_path / "new", **moved)["checkpoint"] == "/new/round1"
  assert begin(tmp_path / "new", prompts_crc32=7)  # which older folders did not record


@pytest.mark.parametrize(
  "changes",
  [
    {"weights_crc32": 6},
    {"block_size": 5},
    {"prompts": {"path": "/old/text.txt", "seq_len": 10}},
    {"new": 1},
  ],
)
def test_other_settings_are_refused(tmp_path, changes):
  begin(tmp_path)
  with pytest.raises(UsageError, match="choose another --workdir"):
    begin(tmp_path, **changes)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": NaN}', "[" * 9999])
def test_settings_that_cannot_be_read_are_one_error(tmp_path, text):
  (tmp_path / shards.SETTINGS).write_text(text)
  with pytest.raises(DataError, match="holds no texts"):
    begin(tmp_path)


def test_settings_elsewhere_are_not_read(tmp_path):
  (tmp_path / "secret").write_text(json.dumps(SETTINGS))
  (tmp_path / "work").mkdir()
  os.symlink(tmp_path / "secret", tmp_path / "work" / shards.SETTINGS)
  with pytest.raises(DataError, match="outside of"):
    begin(tmp_path / "work")
