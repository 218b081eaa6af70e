"""Memory that is kept between steps: the system is not asked for the same pages again."""

import os
import platform
import subprocess
import sys

import pytest

from sbdjax import host_pages

# Pages that 5 blocks of 64 MiB ask the system for, after the first one was freed.
FAULTS = """
import resource
from sbdjax import host_pages
print(host_pages.keep())
bytearray(64 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
  bytearray(64 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 5 * (64 << 20) // os.sysconf("SC_PAGE_SIZE")


def run(**settings):
  environ = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
  shown = subprocess.run(
    [sys.executable, "-c", FAULTS],
    env=environ | settings,
    capture_output=True,
    text=True,
    check=True,
  )
  kept, faults = shown.stdout.split()
  return kept == "True", int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_used_again():
  kept, faults = run()
  assert kept and faults < PAGES / 100


def test_the_settings_of_the_environment_are_left_alone():
  kept, faults = run(GLIBC_TUNABLES="")
  assert not kept
  if platform.libc_ver()[0] == "glibc":  # so that the other test can fail
    assert faults > PAGES / 2
  assert not host_pages.keep({"MALLOC_ARENA_MAX": "2"})


def test_a_c_library_without_such_settings_is_left_alone(monkeypatch):
  monkeypatch.setattr(host_pages.ctypes, "CDLL", lambda name: object())
  assert not host_pages.keep({})
