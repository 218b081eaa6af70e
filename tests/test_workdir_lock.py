"""One process writes a workdir; a lock left by a dead one is none."""

import json
import os
import signal
import subprocess
import sys

import pytest

from sbdjax import workdir_lock
from sbdjax.errors import UsageError

HOLD = """
import sys, time
from sbdjax import workdir_lock
with workdir_lock.hold(sys.argv[1], sys.argv[2], sys.argv[3]):
  print("held", flush=True)
  time.sleep(60)
"""


@pytest.fixture
def holder():
  """(folder, verb, part) -> a process that holds the lock."""
  started = []

  def start(folder, verb="train", part=""):
    command = [sys.executable, "-c", HOLD, str(folder), verb, part]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    started.append(process)
    assert process.stdout.readline() == "held\n"
    return process

  yield start
  for process in started:
    process.kill()
    process.wait()


def test_a_second_process_is_refused_and_told_who_is_there(tmp_path, holder):
  process = holder(tmp_path / "run")
  with pytest.raises(UsageError, match=f"in use by `train`, process {process.pid} on .* since"):
    with workdir_lock.hold(tmp_path / "run", "sweep"):
      pytest.fail("two of them")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_of_a_dead_process_is_taken_over(tmp_path, holder, number):
  process = holder(tmp_path / "run")
  process.send_signal(number)
  process.wait()
  assert (tmp_path / "run" / ".lock").exists()
  with workdir_lock.hold(tmp_path / "run", "sweep"):
    about = json.loads((tmp_path / "run" / ".lock").read_text())
    assert (about["process"], about["verb"]) == (os.getpid(), "sweep")
  assert os.listdir(tmp_path / "run") == []


def test_the_same_process_is_a_second_one_too(tmp_path):
  with workdir_lock.hold(tmp_path, "train"):
    for _ in range(2):
      with pytest.raises(UsageError, match="in use by `train`"):
        with workdir_lock.hold(tmp_path, "train"):
          pass
    # What was refused has not let go of the lock.
    code = (
      "import sys; from sbdjax import workdir_lock\nwith workdir_lock.hold(sys.argv[1], 'x'): pass"
    )
    done = subprocess.run(
      [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert "in use by `train`" in done.stderr
  with workdir_lock.hold(tmp_path, "train"):
    pass


def test_parts_share_a_folder_with_other_parts_alone(tmp_path, holder):
  holder(tmp_path, "collect", "0/2")
  with workdir_lock.hold(tmp_path, "collect", "1/2"):
    pass
  for verb, part in (("collect", "0/2"), ("train", "")):
    with pytest.raises(UsageError, match="in use by `collect`"):
      with workdir_lock.hold(tmp_path, verb, part):
        pass


def test_a_folder_of_which_nothing_became_goes(tmp_path):
  with pytest.raises(ZeroDivisionError):
    with workdir_lock.hold(tmp_path / "new", "train"):
      raise ZeroDivisionError
  assert not (tmp_path / "new").exists()


def test_what_cannot_be_written_is_one_error(tmp_path):
  (tmp_path / "file").write_text("")
  for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
    with pytest.raises(UsageError, match="cannot (make|write to) --workdir"):
      with workdir_lock.hold(path, "train"):
        pass
