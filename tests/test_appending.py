"""Lines of a record are whole, whatever other processes add and wherever one was killed."""

import json
import pathlib
import subprocess
import sys

import pytest

from sbdjax import plain_json
from sbdjax.appending import append_line
from sbdjax.evals.record import JsonLines

WRITER = """
import json, sys, pathlib
from sbdjax.appending import append_line
for i in range(200):
  append_line(pathlib.Path(sys.argv[1]), json.dumps([sys.argv[2], i, "x" * 9000]))
"""


def test_processes_that_append_at_once_lose_nothing(tmp_path):
  path = tmp_path / "points.jsonl"
  command = [sys.executable, "-c", WRITER, str(path)]
  writers = [subprocess.Popen([*command, str(n)]) for n in range(3)]
  assert [w.wait(timeout=120) for w in writers] == [0, 0, 0]
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  for n in range(3):
    assert [i for who, i, _ in lines if who == str(n)] == list(range(200))


def test_what_another_process_has_added_since_stays(tmp_path):
  path = tmp_path / "points.jsonl"
  ours = JsonLines(path)
  theirs = JsonLines(path)
  ours.append({"a": 1})
  theirs.append({"b": 2})
  ours.append({"c": 3})
  assert JsonLines(path).records == [{"a": 1}, {"b": 2}, {"c": 3}]


@pytest.mark.parametrize("torn", ['{"half": ', '{"whole": 1}', "x" * 200_000])
def test_half_a_line_is_dropped(tmp_path, torn):
  path = tmp_path / "points.jsonl"
  path.write_text('{"a": 1}\n' + torn)
  append_line(path, '{"b": 2}')
  assert path.read_text() == '{"a": 1}\n{"b": 2}\n'
  path.write_text(torn)
  append_line(path, '{"b": 2}')
  assert path.read_text() == '{"b": 2}\n'


def test_a_line_that_does_not_fit_is_taken_back(tmp_path):
  path = tmp_path / "points.jsonl"
  append_line(path, "[1]")
  code = "import resource, sys, pathlib; from sbdjax.appending import append_line; "
  code += "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); "
  code += "append_line(pathlib.Path(sys.argv[1]), 'x' * 1000)"
  done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
  assert "File too large" in done.stderr and str(path) in done.stderr
  assert path.read_text() == "[1]\n"


def test_what_is_printed_has_null_for_numbers_that_are_none():
  value = {"a": float("nan"), "b": [1.0, float("-inf"), {"c": (2, float("inf"))}]}
  assert json.loads(plain_json.dumps(value)) == {"a": None, "b": [1.0, None, {"c": [2, None]}]}
  assert plain_json.dumps(0.5) == "0.5"


def test_the_error_names_the_file(tmp_path):
  with pytest.raises(OSError, match="nowhere"):
    append_line(pathlib.Path(tmp_path / "nowhere" / "x"), "")
