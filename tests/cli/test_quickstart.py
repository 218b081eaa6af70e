"""The quickstart: what it measures, and (long) all of it in miniature."""

import json

import pytest

from sbdjax import __main__ as entry
from sbdjax.cli import quickstart
from sbdjax.cli.quickstart import FULL, Contender


def test_the_grid_is_ar_and_every_bound_for_every_model():
  points = quickstart.grid([Contender("a", "first"), Contender("b", "second")], FULL)
  assert [(p.sweep.label, p.decoding.name) for p in points] == [
    (label, name) for label in ("first", "second") for name in ["ar"] + ["sbd"] * 7
  ]
  assert {p.decoding.method.rule.gamma for p in points if p.decoding.name == "sbd"} == {
    0.0, 0.01, 0.1, 0.2, 0.4, 0.8, 1.5,
  }  # fmt: skip
  assert {p.sweep.judge for p in points} == {"stories260K"}
  assert {p.sweep.num_prompts for p in points} == {FULL.num_prompts}


def test_workdir_that_cannot_be_made(tmp_path, capsys):
  (tmp_path / "file").write_text("")
  assert entry.main(["quickstart", "--short", f"--workdir={tmp_path}/file"]) == 2
  assert "--workdir" in capsys.readouterr().err


@pytest.mark.long
def test_all_of_it_in_miniature(tmp_path, capsys):
  assert entry.main(["quickstart", "--short", f"--workdir={tmp_path}"]) == 0
  out = capsys.readouterr().out
  assert "Once upon a time, there was a little girl named Lily." in out
  assert all(f"{n} of 5" in out for n in range(1, 6))
  points = [json.loads(line) for line in (tmp_path / "points.jsonl").read_text().splitlines()]
  assert [p["settings"]["decoder"]["name"] for p in points][:3] == ["ar", "sbd", "sbd"]
  assert (tmp_path / "sweep.png").stat().st_size > 10_000
  assert (tmp_path / "model" / "DONE").exists()
