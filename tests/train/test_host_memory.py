"""Freed memory stays with the process: using it again costs no page faults."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from sbdjax.train.host_memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
  print("unsupported"); sys.exit()
np.ones(8_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
  np.ones(8_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(mode):
  # Whoever runs the tests may have set what the program is to set itself.
  env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM, mode],
    capture_output=True,
    text=True,
    timeout=120,
    check=True,
    env=env,
  )
  return done.stdout.strip()


def test_a_large_buffer_is_faulted_in_once():
  kept = _faults("keep")
  if kept == "unsupported":
    pytest.skip("the C library is not glibc")
  default = int(_faults("default"))
  assert int(kept) < default / 10
