"""Processes that find each other by what a scheduler sets, and by nothing else."""

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest

from sbdjax.train import checkpoints
from tests.cli.test_train import ROOT, _write_config
from tests.launch.test_recipes import FOLDER

# Where JAX looks for a port when it knows a job: 61,440 and the job's number.
_FIRST_PORT = 2**16 - 2**12


def _job():
  """A job number whose port is free."""
  for port in range(_FIRST_PORT + os.getpid() % 2**11, 2**16):
    with socket.socket() as s, contextlib.suppress(OSError):
      s.bind(("localhost", port))
      return port - _FIRST_PORT
  raise OSError("no port is free")


def slurm(job, number, count):
  return {
    "SLURM_JOB_ID": str(job),
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": str(count),
    "SLURM_PROCID": str(number),
    "SLURM_LOCALID": str(number),
    "SLURM_STEP_NUM_NODES": "1",
  }


def open_mpi(job, number, count):
  return {
    "OMPI_MCA_orte_hnp_uri": f"{job * 2**12}.0;tcp://127.0.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": str(count),
    "OMPI_COMM_WORLD_RANK": str(number),
    "OMPI_COMM_WORLD_LOCAL_RANK": str(number),
  }


@pytest.mark.long
@pytest.mark.parametrize("scheduler", [slurm, open_mpi])
def test_two_processes_find_each_other(scheduler, tmp_path):
  config, workdir, job = _write_config(tmp_path), tmp_path / "run", _job()
  command = [sys.executable, "-m", "sbdjax", "train", f"--config={config}", f"--workdir={workdir}"]
  command += [
    "--distributed",
    "--config.train.steps=2",
    "--config.optim.warmup_steps=1",
  ]
  known = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_", "JAX_NUM"))}
  base = known | {"NPROC": "8", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
  processes = [
    subprocess.Popen(
      command, cwd=ROOT, env=base | scheduler(job, i, 2), stdout=subprocess.PIPE,
      stderr=subprocess.PIPE, text=True,
    )
    for i in range(2)
  ]  # fmt: skip
  said = [process.communicate(timeout=300) for process in processes]
  assert [process.returncode for process in processes] == [0, 0], said
  assert "step 2/2" in said[0][0] and "step 2/2" not in said[1][0]  # the first alone reports
  assert json.loads((workdir / "env.json").read_text())["processes"] == 2
  assert checkpoints.steps(workdir) == [2]


@pytest.mark.long
def test_the_local_recipe_runs(tmp_path):
  script = (FOLDER / "local.sh").read_text().replace("python -m", f"{sys.executable} -m")
  script = script.replace("steps=20", "steps=2").replace("warmup_steps=2", "warmup_steps=1")
  done = subprocess.run(
    ["bash", "-c", script, "local.sh", str(tmp_path / "two")],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=400,
  )
  assert done.returncode == 0, done.stderr
  assert checkpoints.steps(tmp_path / "two") == [2]
