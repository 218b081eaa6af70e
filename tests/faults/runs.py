"""Runs of the fault campaign: small ones of the real verbs, and what makes two of them equal."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
_WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "red", "ball"]
_CONFIG = """
from ml_collections import ConfigDict

def get_config():
  return ConfigDict(dict(
    model=dict(
      vocab_size=28, mask_id=27, num_layers=1, d_model=16, num_heads=2, num_kv_heads=1, d_ff=24,
      max_seq_len=32,
    ),
    data=dict(source="text", path={text!r}, tokenizer="text8", add_bos=False, seq_len=16),
    loss=dict(name="sbd", block_size_max=4),
    optim=dict(learning_rate=0.01, warmup_steps=2),
    train=dict(
      steps={steps}, batch_size=4, log_every=5, eval_every=20, eval_batches=1, checkpoint_every=4,
      ema_decay=0.9,
    ),
  ))
"""
_SWEEP = """
from ml_collections import ConfigDict

def get_config():
  return ConfigDict(dict(
    sweep=dict(checkpoint="stories260K-sbd", num_prompts=2, prompt_tokens=4, repeats=1),
    decoder=dict(name="sbd", block_size=4, max_tokens=8),
    data=dict(source="stories"),
  ))

def get_sweep():
  return [{"decoder.gamma": 0.1 * i} for i in range(12)]
"""
_TRAJECTORIES = """
from ml_collections import ConfigDict

def get_config():
  return ConfigDict(dict(
    prompts=dict(source="stories"),
    collect=dict(
      checkpoint="stories260K", block_size=4, max_tokens=12, shortest=2, longest=6, limit=40,
      batch_size=4, shard_size=4, seed=5,
    ),
  ))
"""
# Values of a record that differ from run to run; and the means of training, which are of the updates
# since the last line or the last start. Commands name the folder.
_CLOCKED = ("seconds", "per_second", "time", "git_", "compile", "train/", "command")


class Ended(NamedTuple):
  """How a process ended."""

  code: int
  stdout: str
  stderr: str
  seconds: float

  @property
  def clean(self) -> bool:
    """No traceback, and at most one line of error."""
    errors = [line for line in self.stderr.splitlines() if line.startswith("error:")]
    return "Traceback" not in self.stderr and len(errors) <= 1


class Job(NamedTuple):
  """A verb, to be run in any workdir.

  Attributes:
    flags: with WORKDIR for the folder.
  """

  verb: str
  flags: tuple[str, ...]

  def command(self, workdir: pathlib.Path) -> list[str]:
    """Its command line."""
    flags = [flag.replace("WORKDIR", str(workdir)) for flag in self.flags]
    return [sys.executable, "-m", "sbdjax", self.verb, *flags]

  def start(
    self, workdir: pathlib.Path, before: Sequence[str] = (), **options: Any
  ) -> subprocess.Popen[str]:
    """Starts it."""
    command = self.command(workdir)
    return subprocess.Popen(
      [*command[:1], *before, *command[1:]],
      cwd=ROOT,
      env=environment(),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      **options,
    )

  def run(self, workdir: pathlib.Path, **options: Any) -> Ended:
    """Runs it to its end."""
    return ended(self.start(workdir, **options))


def environment() -> dict[str, str]:
  """Of the processes."""
  return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "NPROC": "16"}


def ended(
  process: subprocess.Popen[str], started: float | None = None, limit: float = 300
) -> Ended:
  """Waits for a process; one that hangs is killed, and its code is 1000."""
  start = time.monotonic() if started is None else started
  try:
    out, err = process.communicate(timeout=limit)
    code = process.returncode
  except subprocess.TimeoutExpired:
    process.send_signal(signal.SIGKILL)
    out, err = process.communicate()
    code = 1000
  return Ended(code, out, err, time.monotonic() - start)


def jobs(folder: pathlib.Path, steps: int) -> dict[str, Job]:
  """The verbs of the campaign, by name."""
  text = folder / "text.txt"
  text.write_text(" ".join(_WORDS[(i * i + i // 7) % len(_WORDS)] for i in range(3000)))
  written = {
    "train": _CONFIG.format(text=str(text), steps=steps),
    "sweep": _SWEEP,
    "trajectories": _TRAJECTORIES,
  }
  for name, source in written.items():
    (folder / f"{name}.py").write_text(source)
  configured = lambda name: (f"--config={folder / name}.py", "--workdir=WORKDIR")
  found = {name: Job(name, configured(name)) for name in written}
  prompts = folder / "prompts.jsonl"
  lines = [{"prompt": " ".join(_WORDS[: 1 + i % 7]), "max_tokens": 5 + i % 40} for i in range(300)]
  prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
  flags = ("--checkpoint=stories260K", f"--prompts={prompts}", "--out=WORKDIR/out.jsonl")
  more = ("--batch_size=4", "--decoder.temperature=1", "--reveal_order")
  return found | {"generate": Job("generate", flags + more)}


def digest(job: Job, workdir: pathlib.Path) -> str:
  """A hash of all that a finished run must have, whatever happened on the way."""
  found: dict[str, Callable[[pathlib.Path], str]] = {
    "train": _of_training,
    "sweep": _of_points,
    "trajectories": _of_shards,
    "generate": _of_lines,
  }
  return found[job.verb](workdir)


def _of_training(workdir: pathlib.Path) -> str:
  """The last state bit for bit, the data position, steps with a line, and evaluations."""
  command = [sys.executable, "-m", "tests.faults.state", str(workdir)]
  done = subprocess.run(
    command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True
  )
  lines = [_timeless(json.loads(line)) for line in (workdir / "metrics.jsonl").open()]
  finished = json.loads((workdir / "DONE").read_text())
  return _hash([done.stdout, lines, finished])


def _of_points(workdir: pathlib.Path) -> str:
  return _hash([_timeless(json.loads(line)) for line in (workdir / "points.jsonl").open()])


def _of_shards(workdir: pathlib.Path) -> str:
  files = sorted(p for p in workdir.iterdir() if p.is_file() and p.name != ".lock")
  return _hash([(p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files])


def _of_lines(workdir: pathlib.Path) -> str:
  """The results byte for byte: there is no clock in them."""
  return _hash(hashlib.sha256((workdir / "out.jsonl").read_bytes()).hexdigest())


def _timeless(record: Any) -> Any:
  if not isinstance(record, dict):
    return record
  return {k: _timeless(v) for k, v in record.items() if not any(word in k for word in _CLOCKED)}


def _hash(value: Any) -> str:
  return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
