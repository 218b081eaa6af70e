"""A signal in the last update of a round ends the command once that round is saved."""

import os
import signal

import pytest
from ml_collections import ConfigDict

from sbdjax.cli import rounds
from sbdjax.train import checkpoints
from tests.train.test_trainer import run_toy

STEPS = 4


@pytest.fixture
def planned(tmp_path, monkeypatch):
  monkeypatch.setattr(rounds.trajectories, "collect", lambda *args: None)
  monkeypatch.setattr(rounds.dataset, "is_complete", lambda folder: True)
  config = ConfigDict({"train": {"steps": STEPS}})
  return [rounds.Round(tmp_path / f"round{i}", None, None, config) for i in (1, 2)]


def _run(planned, number=None):
  def on_batch(step):
    if step == STEPS - 1 and number is not None:
      os.kill(os.getpid(), number)

  train = lambda config, folder, stop: run_toy(folder, on_batch, stop=stop, steps=STEPS)
  return rounds.run(planned, lambda config: None, train)


def test_a_signal_in_the_last_update_of_a_round_starts_no_other(planned):
  first, second = (each.folder for each in planned)
  assert _run(planned, signal.SIGTERM) is None
  assert checkpoints.steps(first)[-1] == STEPS and not second.exists()
  with pytest.raises(KeyboardInterrupt):
    _run(planned, signal.SIGINT)  # goes on with the second, to its end
  assert checkpoints.steps(second)[-1] == STEPS
  assert _run(planned) == second
