"""Compiles the kernels for devices that are not here: python experiments/kernels/aot.py [--targets=...]

What `make kernels-aot` runs. A target whose compile-only client is not installed is skipped, and
says so: TPUs need libtpu (pip install "jax[tpu]"), GPUs the CUDA plugin (pip install "jax[cuda13]")
of JAX 0.11 or newer, and ptxas. Every target has a process of its own. Fails where a program does
not compile, a GPU kernel spills, or a figure of a program is larger than in its line of --out:
registers, shared memory, instructions, temporaries, bytes moved. Programs without a line there get
one; --accept replaces the lines of all that was compiled. --bundles counts the instructions of TPU
kernels, and those that spill, in what the compiler dumps (80 MB per program).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = pathlib.Path(__file__).with_name("aot.jsonl")
TARGETS = ("v5e:2x2", "v6e:2x2", "h200:1")
# How much larger than recorded a figure may be: compilers' versions differ a little. What must not
# grow at all is 0; figures of an older record that has none of a name have no limit.
SLACK = {
  "registers": 0.0,
  "spill_bytes": 0.0,
  "shared_bytes": 0.0,
  "bundles": 0.05,
  "vector_spills": 0.05,
  "vector_fills": 0.05,
  "temporary_bytes": 0.1,
  "memory_bytes": 0.02,
  "bytes_accessed": 0.05,
}


def figures(line: dict) -> dict[str, int]:
  """What of a line has a limit: "temporary_bytes", "flash_dq registers", ..."""
  found = {name: line[name] for name in SLACK if line.get(name) is not None}
  for kernel in line["kernels"]:
    found |= {f"{kernel['name']} {name}": kernel[name] for name in SLACK if name in kernel}
  return found


def regressions(line: dict, recorded: dict) -> list[str]:
  """Figures of a program that are larger than in its recorded line."""
  now, then = figures(line), figures(recorded)
  return [
    f"{name} {now[name]}, recorded {then[name]}"
    for name in now
    if name in then and now[name] > then[name] * (1 + SLACK[name.split()[-1]])
  ]


def key(line: dict) -> tuple[str, str]:
  return line["target"], line["job"]


def read(path: pathlib.Path) -> dict[tuple[str, str], dict]:
  """Recorded lines by target and job."""
  lines = path.read_text().splitlines() if path.is_file() else []
  return {key(line): line for line in map(json.loads, lines)}


def worker(target: str, folder: pathlib.Path) -> None:
  """Compiles everything for one target; prints a line of JSON a program, or a reason to skip it."""
  import jax

  from sbdjax.bench import aot
  from sbdjax.errors import UsageError
  from sbdjax.evals import record
  from sbdjax.train import topology

  where = topology.parse(target)
  on_gpu = not target.startswith("v")
  backend = "pallas_gpu" if on_gpu else "pallas_tpu"
  if where.missing:
    print(json.dumps({"target": target, "skipped": where.missing}))
    return
  # Programs for devices that are not here can be written to the cache but not read back.
  jax.config.update("jax_enable_compilation_cache", False)
  device = where.devices()[0]
  for job in aot.JOBS:
    line = {"target": target, "device": device.device_kind, "job": job.name, "backend": backend}
    try:
      program = aot.compile_job(job, backend, device)
    except Exception as e:  # whatever the compiler says is the result
      if isinstance(e, UsageError) and job is aot.JOBS[0]:  # this JAX has no such kernels
        print(json.dumps({"target": target, "skipped": str(e)}), flush=True)
        return
      text = " ".join(f"{type(e).__name__}: {e}".split())
      line |= {"problems": [f"does not compile: {text[:500]}"], "kernels": []}
    else:
      kernels = aot.read_ptxas(folder) if on_gpu else aot.read_bundles(folder)
      if on_gpu and not kernels:
        raise RuntimeError("the compiler says nothing of registers")
      problems = [f"{k.name}: {k.problem}" for k in kernels if k.problem]
      line |= {
        "problems": problems,
        "kernels": [{"name": k.name} | k.numbers for k in kernels],
        "memory_bytes": program.memory_bytes,
        "temporary_bytes": program.temporary_bytes,
        "bytes_accessed": aot.bytes_accessed(program),
        "compile_seconds": program.compile_seconds,
        "compile_cpu_seconds": program.compile_cpu_seconds,
      }
    finally:
      for path in folder.iterdir():
        path.unlink()
    made_by = record.provenance()
    line |= {name: made_by[name] for name in ("git_commit", "git_modified", "packages")}
    print(json.dumps(line), flush=True)


def run(target: str, bundles: bool = False) -> list[dict]:
  """Lines of a target's own process."""
  with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
    environment = os.environ | {
      "JAX_PLATFORMS": "cpu",
      "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
      # Nobody wants the device itself: several may compile for one at a time.
      "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
      "MOSAIC_GPU_DUMP_PTXAS": "1",
      "MOSAIC_GPU_DUMP_TO": folder,
    }
    if bundles:
      dump = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
      environment["LIBTPU_INIT_ARGS"] = dump
    command = [sys.executable, __file__, f"--worker={target}", f"--folder={folder}"]
    with subprocess.Popen(
      command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process:
      lines = [json.loads(x) for x in process.stdout if x.startswith("{")]
    errors.seek(0)
    said = errors.read()
  if process.returncode:
    reason = said.strip().splitlines()[-1] if said.strip() else f"exit code {process.returncode}"
    lines.append({"target": target, "job": "-", "problems": [reason], "kernels": []})
  return lines


def show(line: dict) -> str:
  """One line of text for one of JSON."""
  if "skipped" in line:
    return f"{line['target']}: skipped: {line['skipped']}"
  kernels = ", ".join(
    f"{k['name']} " + " ".join(f"{name}={n}" for name, n in k.items() if name != "name")
    for k in line["kernels"]
  )
  verdict = "; ".join(line["problems"]) or "ok"
  memory = (
    f"{line['temporary_bytes'] / 2**20:.1f} MiB of temporaries; "
    if "temporary_bytes" in line
    else ""
  )
  if line.get("bytes_accessed"):
    least = line["memory_bytes"] - line["temporary_bytes"]
    memory += f"moves {line['bytes_accessed'] / least:.2f} of its arguments and results; "
  return f"{line['target']}: {line['job']}: {verdict} ({memory}{kernels})"


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--targets", default=",".join(TARGETS), help="separated by commas")
  parser.add_argument("--out", type=pathlib.Path, default=OUT, help="JSON lines, and limits")
  parser.add_argument("--accept", action="store_true", help="what is compiled now is the record")
  parser.add_argument("--bundles", action="store_true", help="count TPU kernels' instructions")
  parser.add_argument("--worker", help=argparse.SUPPRESS)
  parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.worker:
    worker(args.worker, args.folder)
    return 0
  recorded, compiled = read(args.out), []
  command = {"command": shlex.join(["python", "experiments/kernels/aot.py", *sys.argv[1:]])}
  for target in args.targets.split(","):
    found = run(target, args.bundles)
    for line in found:
      if not args.accept and "skipped" not in line and key(line) in recorded:
        line["problems"] += regressions(line, recorded[key(line)])
    print("\n".join(map(show, found)), flush=True)
    compiled += [line | command for line in found if "skipped" not in line]
  failed = any(line["problems"] for line in compiled)
  new = {key(line): line for line in compiled if args.accept or key(line) not in recorded}
  if new and not failed:
    lines = (recorded | new).values()
    args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"recorded in {args.out}")
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
