"""Breaks runs in every way that machines do, and compares their ends: python -m tests.faults [--runs=100]

Each scenario begins runs of a verb, harms them, starts the same command again until it is done, and
compares what it leaves with that of a run nobody touched: bit for bit. A table tells how many were
harmed, how many ended well, and in what phase. The exit code is 1 if one was lost, hung, printed a
traceback or ended otherwise than it should.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.faults.runs import Ended, Job, digest, ended, jobs

STEPS = 60
# How often a command is started again before it counts as lost.
_TRIES = 200


class Row(NamedTuple):
  """What became of a scenario.

  Attributes:
    harmed: processes that were harmed.
    well: of them, those that ended as they should.
    same: "3 of 3": runs that ended bit-identically.
    notes: phases, codes, and what went wrong.
  """

  scenario: str
  harmed: int
  well: int
  same: str
  notes: str

  @property
  def passed(self) -> bool:
    """Nothing was lost."""
    first, _, last = self.same.partition(" of ")
    return self.harmed == self.well and first == last


class Campaign:
  """The folder, the jobs and their untouched ends."""

  def __init__(self, folder: pathlib.Path, seed: int, steps: int):
    self.folder, self.random = folder, random.Random(seed)
    self.jobs = jobs(folder, steps)
    self._ends: dict[str, tuple[str, float]] = {}
    self._count = 0

  def workdir(self) -> pathlib.Path:
    """A new one."""
    self._count += 1
    return self.folder / f"run{self._count}"

  def untouched(self, name: str) -> tuple[str, float]:
    """Hash and seconds of a run that nobody harmed; the first of each compiles."""
    if name not in self._ends:
      job, workdir = self.jobs[name], self.workdir()
      done = job.run(workdir)
      assert done.code == 0, done.stderr
      again = self.workdir()
      done = job.run(again)
      assert digest(job, workdir) == digest(job, again), f"{name} differs from itself"
      self._ends[name] = digest(job, again), done.seconds
    return self._ends[name]

  def finish(self, job: Job, workdir: pathlib.Path) -> list[str]:
    """Starts the job until it is done; what went wrong."""
    for _ in range(_TRIES):
      done = job.run(workdir)
      if done.code == 0:
        return [] if done.clean else [_last_line(done)]
      if done.code in (143, 130):
        continue
      return [f"exit {done.code}: {_last_line(done)}"]
    return ["never done"]

  def same(self, name: str, workdir: pathlib.Path) -> bool:
    """Whether a finished run is as the untouched one."""
    found = digest(self.jobs[name], workdir) == self.untouched(name)[0]
    shutil.rmtree(workdir, ignore_errors=True)
    return found


def _last_line(done: Ended) -> str:
  lines = [line for line in done.stderr.splitlines() if line.strip()]
  return lines[-1][:160] if lines else "(nothing on stderr)"


def _phase(workdir: pathlib.Path) -> str:
  """What a run is doing, by what lies in its folder."""
  root = workdir / "checkpoints"
  if any(root.glob("*.orbax-checkpoint-tmp*")):
    return "saving"
  if any(root.glob("[0-9]*")):
    return "training"
  if (workdir / "out.jsonl").exists():
    return "decoding"
  return "first steps" if (workdir / "config.json").exists() else "starting or compiling"


def signals(
  campaign: Campaign, name: str, sent: tuple[signal.Signals, ...], codes: set[int], runs: int
) -> Row:
  """Sends signals at random moments; runs go on from one process to the next."""
  job, (_, seconds) = campaign.jobs[name], campaign.untouched(name)
  harmed, well, ends, equal, problems = 0, 0, 0, 0, []
  phases: collections.Counter[str] = collections.Counter()
  while harmed < runs:
    workdir = campaign.workdir()
    for _ in range(_TRIES):
      start = time.monotonic()
      process = job.start(workdir)
      # Half of them early, where starts and the first saves are, half anywhere.
      time.sleep(
        campaign.random.uniform(0.3, 1.0) ** 2 * seconds * campaign.random.uniform(0.2, 1.2)
      )
      phase = _phase(workdir)
      alive = process.poll() is None
      if alive and harmed < runs:
        for number in sent:
          with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
          time.sleep(0.05 * (len(sent) > 1))
      done = ended(process, start)
      if alive and harmed < runs:
        harmed += 1
        phases[phase] += 1
        if done.code in codes | {0} and done.clean:
          well += 1
        else:
          problems.append(f"exit {done.code} while {phase}: {_last_line(done)}")
      elif done.code != 0:
        problems.append(f"exit {done.code}: {_last_line(done)}")
        break
      if done.code == 0:
        break
    ends += 1
    if done.code == 0:
      equal += campaign.same(name, workdir)
  told = ", ".join(f"{count} {phase}" for phase, count in phases.most_common())
  label = "+".join(s.name for s in sent)
  return Row(
    f"{name}: {label}", harmed, well, f"{equal} of {ends}", "; ".join([told, *problems[:3]])
  )


def full_disk(campaign: Campaign, runs: int) -> Row:
  """A disk that fills up at ever later writes; the same command goes on once there is space."""
  job, harmed, well, equal, problems = campaign.jobs["train"], 0, 0, 0, []
  for size in _sizes(runs):
    with _disk(campaign.workdir(), size) as (place, grow):
      workdir = place / "run"
      done = job.run(workdir)
      harmed += 1
      refused = done.code != 0 and "no space left" in done.stderr
      if done.clean and (done.code == 0 or refused):
        well += 1
      else:
        problems.append(f"{size} kB: exit {done.code}: {_last_line(done)}")
      grow()
      problems += campaign.finish(job, workdir)
      equal += campaign.same("train", workdir)
  return Row("train: disk full", harmed, well, f"{equal} of {harmed}", "; ".join(problems[:3]))


def _sizes(runs: int) -> list[int]:
  """Kilobytes of small disks: from nothing to enough for the first checkpoints."""
  return [int(16 * 1.25**i) for i in range(2, 2 + max(2, min(runs, 18)))]


@contextlib.contextmanager
def _disk(
  place: pathlib.Path, kilobytes: int
) -> Iterator[tuple[pathlib.Path, Callable[[], object]]]:
  """A file system of this size; yields it and what enlarges it. Needs the right to mount."""
  place.mkdir()
  subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", place], check=True)
  try:
    yield place, lambda: subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
  finally:
    subprocess.run(["umount", "-l", place], check=True)


def large_files(campaign: Campaign, runs: int) -> Row:
  """Every write beyond some size of a file fails, as on a disk that fills up inside of a file."""
  job, harmed, well, equal, problems = campaign.jobs["train"], 0, 0, 0, []
  for size in [64, 512, 2048, 8192, 16384, 65536][: max(2, runs)]:
    limit = lambda size=size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    workdir = campaign.workdir()
    done = job.run(workdir, preexec_fn=limit)
    harmed += 1
    if done.clean and done.code in (0, 1, 2):
      well += 1
    else:
      problems.append(f"{size} bytes: exit {done.code}: {_last_line(done)}")
    problems += campaign.finish(job, workdir)
    equal += campaign.same("train", workdir)
  return Row("train: file too large", harmed, well, f"{equal} of {harmed}", "; ".join(problems[:3]))


def read_only(campaign: Campaign, runs: int) -> Row:
  """A disk that cannot be written any more, from the start and in the middle."""
  del runs
  job, well, equal, problems = campaign.jobs["train"], 0, 0, []
  for begun in (False, True):
    with _disk(campaign.workdir(), 65536) as (place, _):
      workdir = place / "run"
      if begun:
        process = job.start(workdir)
        while not any((workdir / "checkpoints").glob("[0-9]*")) and process.poll() is None:
          time.sleep(0.05)
        process.kill()
        process.communicate()
      subprocess.run(["mount", "-o", "remount,ro", place], check=True)
      done = job.run(workdir)
      if done.clean and done.code in (1, 2):
        well += 1
      else:
        problems.append(f"exit {done.code}: {_last_line(done)}")
      subprocess.run(["mount", "-o", "remount,rw", place], check=True)
      problems += campaign.finish(job, workdir)
      equal += campaign.same("train", workdir)
  return Row("train: read-only", 2, well, f"{equal} of 2", "; ".join(problems[:3]))


def _begun(campaign: Campaign) -> pathlib.Path:
  """A run that was stopped with two checkpoints or more."""
  workdir = campaign.workdir()
  process = campaign.jobs["train"].start(workdir)
  while process.poll() is None:
    if sum(p.name.isdecimal() for p in (workdir / "checkpoints").glob("*")) >= 2:
      process.send_signal(signal.SIGTERM)
      break
    time.sleep(0.02)
  ended(process)
  return workdir


def damage(campaign: Campaign, runs: int) -> Row:
  """Files of the newest checkpoint that are cut, changed or gone: the one before is gone on from."""
  job, well, equal, problems = campaign.jobs["train"], 0, 0, []
  ways = (
    lambda data: data[: len(data) // 2],
    lambda data: b"",
    lambda data: None,
    lambda data: data[:-1] + bytes([data[-1] ^ 1]) if data else None,
  )
  for number in range(runs):
    workdir = _begun(campaign)
    newest = max(
      (p for p in (workdir / "checkpoints").iterdir() if p.name.isdecimal()),
      key=lambda p: int(p.name),
    )
    parts = ("state", "data")
    files = sorted(p for part in parts for p in (newest / part).rglob("*") if p.is_file())
    files.append(newest / "inventory.json")
    chosen, way = campaign.random.choice(files), ways[number % len(ways)]
    changed = way(chosen.read_bytes())
    if changed is None:
      chosen.unlink()
    else:
      chosen.write_bytes(changed)
    done = job.run(workdir)
    told = "is damaged, going back to step" in done.stderr
    if done.code == 0 and done.clean and told:
      well += 1
    else:
      problems.append(f"{chosen.relative_to(newest)}: exit {done.code}: {_last_line(done)}")
    equal += done.code == 0 and campaign.same("train", workdir)
  return Row("train: damaged checkpoint", runs, well, f"{equal} of {runs}", "; ".join(problems[:3]))


def half_lines(campaign: Campaign, runs: int) -> Row:
  """Records that end in half a line, of training and of a sweep."""
  well, equal, problems = 0, 0, []
  for number in range(runs):
    name, file = (("train", "metrics.jsonl"), ("sweep", "points.jsonl"))[number % 2]
    workdir, job = campaign.workdir(), campaign.jobs[name]
    campaign.untouched(name)
    process = job.start(workdir)
    while process.poll() is None and not (
      (workdir / file).exists() and (workdir / file).stat().st_size
    ):
      time.sleep(0.02)
    process.kill()
    process.communicate()
    path = workdir / file
    if path.exists():
      data = path.read_bytes()
      path.write_bytes(data[: campaign.random.randint(0, len(data))] + b'{"half": ')
    found = campaign.finish(job, workdir)
    problems += found
    well += not found
    equal += not found and campaign.same(name, workdir)
  return Row("train, sweep: half lines", runs, well, f"{equal} of {runs}", "; ".join(problems[:3]))


def clock(campaign: Campaign, runs: int) -> Row:
  """A clock that jumps. Orbax measures its timeouts by it, so a save may be refused; the same command
  goes on from the one before."""
  del runs
  equal, well, problems = 0, 0, []
  for name in ("train", "sweep"):
    job, workdir = campaign.jobs[name], campaign.workdir()
    command = job.command(workdir)
    command[command.index("sbdjax")] = "tests.faults.clock"
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True)
    done = ended(process)
    refused = done.code == 1 and "cannot save step" in done.stderr
    if done.clean and (done.code == 0 or refused):
      well += 1
    else:
      problems.append(f"exit {done.code}: {_last_line(done)}")
    problems += campaign.finish(job, workdir)
    equal += campaign.same(name, workdir)
  return Row("train, sweep: clock jumps", 2, well, f"{equal} of 2", "; ".join(problems))


def together(campaign: Campaign, runs: int) -> Row:
  """Several processes on one folder: one goes on, the others are refused."""
  well, equal, problems, count = 0, 0, [], 0
  for first, second in (("train", "train"), ("sweep", "sweep"), ("train", "sweep"))[: max(1, runs)]:
    workdir = campaign.workdir()
    campaign.untouched(first)
    process = campaign.jobs[first].start(workdir)
    while not (workdir / ".lock").exists() and process.poll() is None:
      time.sleep(0.02)
    process.send_signal(signal.SIGSTOP)  # so that it is there when the second one looks
    done = campaign.jobs[second].run(workdir)
    process.send_signal(signal.SIGCONT)
    last = ended(process)
    count += 1
    if done.code == 2 and "is in use by" in done.stderr and last.code == 0 and last.clean:
      well += 1
    else:
      problems.append(f"{first}+{second}: exit {done.code}: {_last_line(done)}")
    equal += campaign.same(first, workdir)
  return Row("two processes, one folder", count, well, f"{equal} of {count}", "; ".join(problems))


def _row(make: Callable[[], Row]) -> Row:
  """A scenario that cannot be made here is told as such."""
  try:
    return make()
  except (subprocess.CalledProcessError, FileNotFoundError) as e:
    command = e.cmd[0] if isinstance(e, subprocess.CalledProcessError) else e.filename
    if command != "mount":
      raise
    return Row("left out: small disks", 0, 0, "0 of 0", "needs the right to mount")


def main() -> int:
  """Runs the scenarios; 1 if something was lost."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument(
    "--runs", type=int, default=100, help="SIGKILLs of training; others are fewer"
  )
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--only", default="", help="scenarios whose names hold this")
  options = parser.parse_args()
  n = options.runs
  some, few = max(2, n // 5), max(2, n // 10)
  kill, term, stop = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
  stopped = {143, -term}
  with tempfile.TemporaryDirectory(prefix="faults") as folder:
    c = Campaign(pathlib.Path(folder), options.seed, STEPS)
    scenarios: dict[str, Callable[[], Row]] = {
      "kill": lambda: signals(c, "train", (kill,), {-kill}, n),
      "kill sweep": lambda: signals(c, "sweep", (kill,), {-kill}, few),
      "kill trajectories": lambda: signals(c, "trajectories", (kill,), {-kill}, few),
      "kill generate": lambda: signals(c, "generate", (kill,), {-kill}, some),
      "int generate": lambda: signals(c, "generate", (stop,), {130, -stop}, few),
      "term": lambda: signals(c, "train", (term,), stopped, some),
      "int": lambda: signals(c, "train", (stop,), {130, -stop}, some),
      "double": lambda: signals(c, "train", (term, term), stopped, few),
      "double int": lambda: signals(c, "train", (stop, stop), {130, -stop}, few),
      "full": lambda: full_disk(c, some),
      "large": lambda: large_files(c, few),
      "read-only": lambda: read_only(c, few),
      "damage": lambda: damage(c, some),
      "half": lambda: half_lines(c, few),
      "clock": lambda: clock(c, few),
      "together": lambda: together(c, few),
    }
    rows = []
    for name, make in scenarios.items():
      if options.only in name:
        rows.append(_row(make))
        print(_shown(rows[-1]), flush=True)
  lost = [row for row in rows if not row.passed]
  print(
    f"\n{sum(row.harmed for row in rows)} harmed in {len(rows)} scenarios, {len(lost)} with losses"
  )
  return 1 if lost else 0


def _shown(row: Row) -> str:
  mark = "ok  " if row.passed else "LOST"
  return (
    f"{mark} {row.scenario:<28} {row.harmed:>4} harmed {row.well:>4} ended well   "
    f"identical {row.same:<9} {row.notes}"
  )


if __name__ == "__main__":
  os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(tempfile.gettempdir()) / "faults_jax")
  )
  sys.exit(main())
