"""What files from elsewhere may be, and JSON that is checked before it is used."""

import json
import os
import socket
from typing import Any, Literal, TypedDict

import pytest

from sbdjax import foreign
from sbdjax.errors import CheckpointError, DataError


class Shape(TypedDict):
  size: int
  rate: float


class Settings(TypedDict, total=False):
  name: str | None
  shape: Shape | None
  parts: list[Shape]
  kind: Literal["a", "b"]
  names: dict[str, str]


def read(tmp_path, text, hint=Settings):
  path = tmp_path / "x.json"
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  return foreign.read_json(path, hint, DataError)


@pytest.mark.parametrize(
  "value",
  [
    {},
    {"name": None, "other": {"is": ["left", "alone"]}},
    {"shape": {"size": 3, "rate": 1}, "parts": [{"size": -1, "rate": 0.5}]},
    {"kind": "b", "names": {}, "parts": []},
  ],
)
def test_what_fits_is_returned_as_it_is(tmp_path, value):
  assert read(tmp_path, json.dumps(value)) == value


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("[]", "x.json is \\[\\], where an object is expected"),
    ('{"name": 3}', "x.json: name is 3, where a text or null is expected"),
    ('{"shape": {"rate": 1}}', "x.json: shape lacks 'size'"),
    ('{"shape": {"size": true, "rate": 1}}', "shape: size is True, where a whole number"),
    ('{"shape": {"size": 1.0, "rate": 1}}', "shape: size is 1.0, where a whole number"),
    ('{"parts": [{"size": 1, "rate": 1}, {"size": "1", "rate": 1}]}', r"parts\[1\]: size is '1'"),
    ('{"shape": {"size": 1, "rate": "x"}}', "shape: rate is 'x', where a number is expected"),
    ('{"shape": {"size": 99999999999999999999999, "rate": 1}}', "size is a huge number"),
    ('{"kind": "c"}', "kind is 'c', where 'a' or 'b' is expected"),
    ('{"names": {"a": 1}}', "names: a is 1, where a text is expected"),
    ('{"names": ["a"]}', "names is \\['a'\\], where an object is expected"),
    ('{"shape": {"size": 1, "rate": NaN}}', "NaN is no number of JSON"),
    ('{"shape": {"size": 1, "rate": -Infinity}}', "-Infinity is no number"),
    ('{"shape": {"size": 1, "rate": 1e999}}', "a number that is too large"),
    ('{"unknown": ' + "[" * 100 + "]" * 100 + "}", "more than 64 deep"),
    ("[" * 200_000, "nested too deep"),
    ('{"shape": ' + "9" * 5000 + "}", "cannot read"),
    ("{", "cannot read"),
    ("", "cannot read"),
    (b"\xff\xfe\x00", "cannot read"),
  ],
)
def test_anything_else_is_one_error_that_names_file_and_field(tmp_path, text, words):
  with pytest.raises(DataError, match=words) as error:
    read(tmp_path, text)
  assert "x.json" in str(error.value) and len(str(error.value)) < 500


def test_no_hint_asks_for_json_alone(tmp_path):
  assert read(tmp_path, "3", Any) == 3


def test_what_cannot_be_opened_is_one_error(tmp_path):
  for path in (tmp_path / "none.json", tmp_path, tmp_path / ("x" * 300), tmp_path / "a\0b"):
    with pytest.raises(CheckpointError, match="cannot read"):
      foreign.read_json(path)


def test_pipes_devices_and_sockets_are_refused_before_they_are_opened(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  listening = socket.socket(socket.AF_UNIX)
  listening.bind(str(tmp_path / "socket"))
  for path in (tmp_path / "pipe", tmp_path / "socket", "/dev/zero"):
    with pytest.raises(CheckpointError, match="no ordinary file"):
      foreign.read_json(path)
  listening.close()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", "a\0b", "..\\x"])
def test_names_that_leave_the_folder_are_refused(tmp_path, name):
  with pytest.raises(CheckpointError, match="only files in it are read"):
    foreign.inside(tmp_path, name, "weight_map")


def test_links_may_not_leave_the_folder(tmp_path):
  folder, other = tmp_path / "model", tmp_path / "secret"
  (folder / "sub").mkdir(parents=True)
  other.write_text("x")
  (folder / "real").write_text("y")
  (folder / "near").symlink_to("real")
  (folder / "sub" / "up").symlink_to("../real")
  (folder / "far").symlink_to(other)
  (folder / "loop").symlink_to("loop")
  (folder / "elsewhere").symlink_to(tmp_path)
  for name in ("real", "near", "sub/up", "missing"):
    assert foreign.inside(folder, name, "weight_map") == folder / name
  for name in ("far", "elsewhere/secret"):
    with pytest.raises(CheckpointError, match="outside of"):
      foreign.inside(folder, name, "weight_map")
  with pytest.raises(CheckpointError):
    foreign.inside(folder, "loop", "weight_map").read_text()
    raise CheckpointError("it was read")


def test_a_folder_that_is_a_link_is_what_it_leads_to(tmp_path):
  (tmp_path / "real").mkdir()
  (tmp_path / "real" / "x").write_text("")
  (tmp_path / "link").symlink_to("real")
  assert foreign.inside(tmp_path / "link", "x", "weight_map").exists()


def test_a_snapshot_of_the_hugging_face_cache_may_link_to_its_blobs_alone(tmp_path):
  blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "1a2b"
  blobs.mkdir(parents=True)
  snapshot.mkdir(parents=True)
  (blobs / "cafe").write_text("")
  (tmp_path / "models--x" / "other").write_text("")
  (snapshot / "good").symlink_to("../../blobs/cafe")
  (snapshot / "bad").symlink_to("../../other")
  assert foreign.inside(snapshot, "good", "weight_map")
  with pytest.raises(CheckpointError, match="outside of"):
    foreign.inside(snapshot, "bad", "weight_map")
