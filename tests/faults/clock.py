"""Runs sbdjax with a clock that jumps by up to a year, back and forth: python -m tests.faults.clock VERB ..."""

import random
import sys
import time

_REAL = time.time
_jump = [0.0]


def _jumping() -> float:
  if random.random() < 0.05:
    _jump[0] = random.uniform(-3e7, 3e7)
  return _REAL() + _jump[0]


if __name__ == "__main__":
  time.time = _jumping
  from sbdjax.__main__ import main

  sys.exit(main(sys.argv[1:]))
