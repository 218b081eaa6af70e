"""What is read from the dumps of compilers."""

import importlib.util
import json
import pathlib

import jax
import pytest

from sbdjax.bench import aot, attention
from sbdjax.bench.rivals import RIVALS

SCRIPT = pathlib.Path(__file__).parents[2] / "experiments" / "kernels" / "aot.py"
PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
    {frame} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 1 bytes smem
"""


def script():
  spec = importlib.util.spec_from_file_location("aot_script", SCRIPT)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def test_registers_and_spills_of_gpu_kernels(tmp_path):
  (tmp_path / "flash_forward_0.ptxas").write_text(PTXAS.format(frame=0, stores=0, loads=0))
  (tmp_path / "flash_forward_0.resources.txt").write_text("Resources(smem_scratch_bytes=166912, x)")
  (tmp_path / "flash_dq_1.ptxas").write_text(PTXAS.format(frame=8, stores=264, loads=280))
  dq, forward = aot.read_ptxas(tmp_path)
  assert forward.name == "flash_forward" and not forward.problem
  assert forward.numbers == {"registers": 168, "spill_bytes": 0, "shared_bytes": 166912}
  assert dq.numbers["spill_bytes"] == 544 and dq.problem == "544 bytes spilled"


def test_instructions_and_spills_of_tpu_kernels(tmp_path):
  bundles = """// comment
     0x0   :  { %s1 = sst [smem:[#allocation9_spill]] %s0 }
     0x1 LB: > { %9 = vst [vmem:[#allocation29_spill] sm:$0xff] /*vst_source=*/%v1 ;; %v2 = vadd }
     0xa   : > { %v3 = vld [vmem:[#allocation29_spill] sm:$0xff] ;; %v4 = vld [vmem:[%s1]] }
     0xb   : > { %v3 = vld [vmem:[%s30] sm:$0xff] }
"""
  for name, target in (
    ("17-transpose_jvp_flash_dq__.1", "tpu_custom_call"),
    ("17-fusion.2", "add"),
  ):
    (tmp_path / f"{name}-72-final_bundles.txt").write_text(bundles)
    (tmp_path / f"{name}-71-schedule-analysis_final_bundles.txt").write_text(target)
  (kernel,) = aot.read_bundles(tmp_path)
  assert kernel.name == "flash_dq" and not kernel.problem
  assert kernel.numbers == {"bundles": 4, "vector_spills": 1, "vector_fills": 1}


def test_every_job_is_built_for_the_shapes_it_names():
  """Traced with a backend that any device has."""
  names = [job.name for job in aot.JOBS]
  assert len(set(names)) == len(names)
  fn, args = aot.JOBS[0].build("xla_dense")
  rule = attention.cases.TRAINING["sbd"]
  assert args[0].shape[1] == rule.queries(4096, aot.BLOCK_SIZE) == 8192  # time first
  out, gradients = jax.eval_shape(fn, *args)
  assert out.shape == args[0].shape and [g.shape for g in gradients] == [x.shape for x in args[:3]]
  assert RIVALS["pallas_tpu"].time_major is False
  fn, args = aot.JOBS[-1].build("xla")
  assert jax.eval_shape(fn, *args).shape == (1, 32, 64, 128)


def test_lines_for_people():
  module = script()
  kernel = {"name": "flash_dq", "registers": 168, "spill_bytes": 0}
  line = {"target": "h200:1", "job": "sbd", "problems": [], "kernels": [kernel]}
  line["temporary_bytes"] = 3 << 19
  said = "(1.5 MiB of temporaries; flash_dq registers=168 spill_bytes=0)"
  assert module.show(line) == f"h200:1: sbd: ok {said}"
  line["problems"] = ["flash_dq: 8 bytes spilled"]
  assert "8 bytes spilled" in module.show(line)
  assert module.show({"target": "v5e:2x2", "skipped": "no libtpu"}) == "v5e:2x2: skipped: no libtpu"


def recorded_line(**figures):
  kernel = {"name": "flash_dq", "registers": 168, "spill_bytes": 0}
  line = {"target": "h200:1", "job": "sbd", "problems": [], "kernels": [kernel]}
  return line | {"temporary_bytes": 1000, "memory_bytes": 5000, "bytes_accessed": 9000} | figures


def test_a_figure_larger_than_recorded_is_a_problem():
  module = script()
  kernels = [{"name": "flash_dq", "registers": 169, "spill_bytes": 0}]
  for figures, problems in (
    ({}, []),
    ({"temporary_bytes": 1100}, []),
    ({"temporary_bytes": 1101}, ["temporary_bytes 1101, recorded 1000"]),
    ({"bytes_accessed": 10_000}, ["bytes_accessed 10000, recorded 9000"]),
    ({"kernels": kernels}, ["flash_dq registers 169, recorded 168"]),
  ):
    assert module.regressions(recorded_line(**figures), recorded_line()) == problems
  older = recorded_line()
  del older["bytes_accessed"]
  assert not module.regressions(recorded_line(bytes_accessed=1 << 40), older)


def test_limits_do_not_move_unless_accepted(monkeypatch, tmp_path, capsys):
  module, out = script(), tmp_path / "aot.jsonl"
  write = lambda *lines: out.write_text("".join(json.dumps(x) + "\n" for x in lines))
  read = lambda: [json.loads(x) for x in out.read_text().splitlines()]
  other = recorded_line(target="v5e:2x2")

  def run(line, *flags):
    monkeypatch.setattr(module, "run", lambda target, bundles: [line])
    monkeypatch.setattr(module.sys, "argv", ["aot", "--targets=h200:1", f"--out={out}", *flags])
    return module.main()

  write(recorded_line(), other)
  assert run(recorded_line(temporary_bytes=500)) == 0 and read()[0] == recorded_line()
  assert run(recorded_line(temporary_bytes=2000)) == 1 and read()[0] == recorded_line()
  assert "recorded 1000" in capsys.readouterr().out
  assert run(recorded_line(temporary_bytes=2000), "--accept") == 0
  assert [x["temporary_bytes"] for x in read()] == [2000, 1000] and read()[1] == other
  assert run(recorded_line(job="new")) == 0 and [x["job"] for x in read()] == ["sbd", "sbd", "new"]


def test_a_target_without_a_client_is_skipped(monkeypatch, tmp_path, capsys):
  from sbdjax.train import topology

  monkeypatch.setitem(
    topology.KINDS, "v5e", topology.KINDS["v5e"]._replace(module="no_such_client")
  )
  script().worker("v5e:2x2", tmp_path)
  found = json.loads(capsys.readouterr().out)
  assert found == {"target": "v5e:2x2", "skipped": "no_such_client is not installed"}


@pytest.mark.long
def test_a_broken_program_fails_the_run(tmp_path):
  """A process of its own; the reason is its last line."""
  found = script().run("v9:2x2")
  assert len(found) == 1 and "v9:2x2" in found[0]["problems"][0]
