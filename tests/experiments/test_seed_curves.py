"""Trainings with several seeds: what is recorded of each run, and what tables and pictures say of them."""

import json

import numpy as np
import pytest
from matplotlib import image

from sbdjax.errors import DataError
from sbdjax.evals import seed_runs
from tests.experiments.test_ssmd import script

module = script("seed_curves")


def workdir(folder, seed, losses):
  """What a training leaves, as far as it is read."""
  folder.mkdir()
  lines = [{"step": 10 * i, "eval/ntp_loss": x} for i, x in enumerate(losses, start=1)]
  lines.insert(1, {"step": 10, "train/loss": 3.0})
  (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  (folder / "config.json").write_text(json.dumps({"train": {"seed": seed}, "data": {"path": "a"}}))
  around = dict(git_commit="abc", git_modified=False, packages={}, python="3", platform="Linux")
  around |= dict(
    devices=["cpu: cpu"] * 2, command=["/somewhere/sbdjax/__main__.py", "train", "--x=1"]
  )
  (folder / "env.json").write_text(json.dumps(around))
  return folder


@pytest.fixture
def recorded(tmp_path):
  """A record of two trainings, two seeds each."""
  losses = {
    ("NTP", 0): (2.0, 1.0),
    ("NTP", 1): (2.2, 1.25),
    ("SBD", 0): (3.0, 1.1),
    ("SBD", 1): (3.0, 1.5),
  }
  runs = [
    f"{name}={workdir(tmp_path / f'{name}_{seed}', seed, curve)}"
    for (name, seed), curve in losses.items()
  ]
  path = tmp_path / "record.jsonl"
  assert module.main([f"--record={path}", f"--out={tmp_path / 'a.png'}", *runs]) == 0
  return path


def test_runs_are_recorded_with_what_made_them(recorded):
  runs = seed_runs.read(recorded)
  assert [(run["run"], run["seed"]) for run in runs] == [
    ("NTP", 0),
    ("NTP", 1),
    ("SBD", 0),
    ("SBD", 1),
  ]
  assert runs[3]["curves"] == {"eval/ntp_loss": [[10, 3.0], [20, 1.5]]}
  assert runs[0]["command"] == "python -m sbdjax train --x=1" and runs[0]["device"] == "cpu: cpu"
  assert runs[0]["git_commit"] == "abc" and runs[0]["settings"]["data"] == {"path": "a"}
  assert "somewhere" not in recorded.read_text()


def test_seeds_are_compared_with_themselves(recorded):
  runs = seed_runs.read(recorded)
  assert seed_runs.last(runs, "SBD") == {0: 1.1, 1: 1.5} and seed_runs.last(runs, "SBD", "x") == {}
  np.testing.assert_allclose(seed_runs.above(runs, "SBD", "NTP"), [0.15, 0.1, 0.2])
  assert seed_runs.mean(runs, "SBD") == pytest.approx((1.3, 1.1, 1.5))
  assert seed_runs.mean(runs, "SBD", "x") is None
  with pytest.raises(ValueError, match="seeds"):
    seed_runs.above(runs[:3], "SBD", "NTP")


def test_runs_that_cannot_be_put_together_are_refused(recorded):
  first, second, *_ = seed_runs.read(recorded)
  elsewhere = {"eval/ntp_loss": [[11, 1.0], [20, 1.0]]}
  for why, run in {
    "none of the metrics": first | {"curves": {}, "seed": 2},
    "the seed 0": first,
    "other steps with seed 2": first | {"curves": elsewhere, "seed": 2},
  }.items():
    with pytest.raises(DataError, match=why):
      seed_runs.check([first, second, run])


def test_a_seed_more_changes_the_picture(recorded, tmp_path):
  module.draw(seed_runs.read(recorded)[:3], tmp_path / "b.png")
  one, two = (image.imread(tmp_path / f"{name}.png") for name in "ab")
  assert one.shape == two.shape and np.abs(one - two).mean() > 0.002
  assert (tmp_path / "b.pdf").is_file()


def test_bits(tmp_path):
  run = module.run_of("a", workdir(tmp_path / "a", 3, (np.log(2.0),)), ["eval/ntp_loss"], bits=True)
  assert run["curves"]["eval/ntp_loss"] == [[10, pytest.approx(1.0)]]
  assert run["unit"] == "bits per character"
