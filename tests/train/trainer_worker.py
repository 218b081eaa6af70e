"""Run by test_trainer: a toy run that kills itself with SIGKILL before a given batch."""

import os
import signal
import sys

from tests.train.test_trainer import run_toy

if __name__ == "__main__":
  workdir, kill_at = sys.argv[1], int(sys.argv[2])

  def on_batch(step):
    if step == kill_at:
      os.kill(os.getpid(), signal.SIGKILL)

  run_toy(workdir, on_batch=on_batch)
