"""The script of the GPU run: stages that fail, hang or run out of time, and all of it at tiny size."""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "experiments" / "kernels" / "run_gpu.py"


@pytest.fixture(scope="module")
def script():
  spec = importlib.util.spec_from_file_location("run_gpu", SCRIPT)
  module = importlib.util.module_from_spec(spec)
  sys.modules["run_gpu"] = module  # dataclasses look their module up
  spec.loader.exec_module(module)
  yield module
  del sys.modules["run_gpu"]


def lines(text):
  return [json.loads(line) for line in text.splitlines()]


def test_a_measurement_that_fails_does_not_stop_the_next(script, capsys, monkeypatch):
  def stage(size):
    yield lambda: 1 // 0
    yield lambda: [{"seconds": size}]

  monkeypatch.setattr(script, "decode", stage)
  script.work("decode", 2.0, limit_s=60)
  first, *rest = lines(capsys.readouterr().out)
  assert first["stage"] == "decode" and {"device", "git_commit"} <= first["provenance"].keys()
  assert rest[0]["error"].startswith("ZeroDivisionError")
  assert rest[1:] == [{"stage": "decode", "seconds": 2.0}]


def test_nothing_is_started_behind_the_limit(script, capsys, monkeypatch):
  monkeypatch.setattr(script, "decode", lambda size: iter([lambda: [{"late": True}]]))
  script.work("decode", None, limit_s=-1)
  assert lines(capsys.readouterr().out)[1:] == [
    {"stage": "decode", "cut": "nothing new after -1 s"}
  ]


def as_python(path, body):
  """A program in the place of Python."""
  path.write_text(f"#!/bin/sh\n{body}\n")
  path.chmod(0o755)
  return str(path)


@pytest.mark.parametrize(
  "body, reason",
  [
    ("echo starting >&2; echo 'CUDA_ERROR_ILLEGAL_ADDRESS' >&2; exit 3", "CUDA_ERROR_ILLEGAL"),
    ("exit 7", "exit code 7"),
    ("exec sleep 600", "exit code -9"),
  ],
)
def test_a_stage_that_dies_is_recorded(script, tmp_path, monkeypatch, body, reason):
  fake = as_python(tmp_path / "python", f'echo \'{{"stage": "flex", "n": 1}}\'; {body}')
  monkeypatch.setattr(script.sys, "executable", fake)
  monkeypatch.setattr(script, "_GRACE_S", 0.2)
  args = argparse.Namespace(size="tiny", limit_s=0.3, out=tmp_path / "gpu.jsonl")
  first, last = script.run("flex", args)
  assert first == {"stage": "flex", "n": 1}
  assert last["stage"] == "flex" and reason in last["failed"]


def test_the_most_wanted_measurements_come_first(script):
  full = script.SIZES["full"]
  grid = list(script._attention_grid(full))
  assert grid[:2] == [(4096, "sbd", "forward"), (4096, "sbd", "forward+backward")]
  assert {length for length, _, _ in grid} == {1024, 4096, 8192} and len(set(grid)) == len(grid)
  assert full.grid[0] == (1, 1024) and set(script.STAGES) <= set(vars(script))


@pytest.mark.long
def test_every_stage_at_tiny_size(tmp_path):
  out = tmp_path / "gpu.jsonl"
  command = [sys.executable, str(SCRIPT), "--size=tiny", f"--out={out}"]
  done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=os.environ)
  assert done.returncode == 0, done.stdout[-2000:]
  found = lines(out.read_text())
  assert not [r for r in found if "failed" in r or r.get("error")]
  for stage in ("correctness", "attention", "decode", "model"):
    rows = [r for r in found if r["stage"] == stage]
    assert len(rows) > 2 and "provenance" in rows[0]
  verdicts = {r["name"]: r["verdict"] for r in found if r["stage"] == "targets"}
  assert verdicts.pop("wrong results") == "pass" and set(verdicts.values()) == {"not measured"}
  assert "pass: wrong results: 0" in done.stdout
