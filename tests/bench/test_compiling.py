"""`bench compile`: programs that need no memory, and a cache that is left alone."""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from sbdjax import __main__ as entry
from sbdjax import pytree
from sbdjax.bench import compiling
from sbdjax.bench.timing import compile_for
from sbdjax.cli import bench_common, bench_compile
from sbdjax.decode import registry
from sbdjax.decode.base import Limits, Sampler
from sbdjax.decode.method import Method
from sbdjax.nn.sigma import HeadConfig
from sbdjax.sigma_lm import SigmaLM, make_sigma_lm
from tests import models


class _State(NamedTuple):
  out: jax.Array
  length: jax.Array


def test_sampler_is_compiled_for_shapes_alone():
  """Parameters of 4 TB: whatever were allocated would not fit."""
  params = {"w": jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)}

  @pytree.dataclass
  class Toy(Method):
    n: int = 2

    def sampler(self, lm, limits):
      init = lambda params, prompt, lengths, keys: _State(prompt * self.n, lengths)
      step = lambda params, state: state._replace(out=state.out + params["w"][0, 0].astype(int))
      return Sampler(init, step, lambda state: state.out[:, 0] > limits.max_tokens)

  lm, sizes = models.lm_of(num_layers=5), dict(batch_size=3, prompt_length=4)
  row = compiling.time_sampler("toy", lm, Toy(), params, Limits(3), **sizes)
  assert (row.program, row.num_layers) == ("toy", 5) and 0 < row.seconds < 60
  assert row.temporary_bytes < 1 << 20


@pytest.mark.parametrize("name", registry.REGISTRY[registry.METHOD])
def test_every_sampler_can_be_built(name):
  decoding = bench_compile.decoding_of(name, 4)
  model = models.config(mask_id=12)
  on_top = decoding.method.models == (SigmaLM,)
  lm = make_sigma_lm(model, HeadConfig()) if on_top else models.lm_of(mask_id=12)
  assert callable(decoding.method.sampler(lm, decoding.limits(())).step)


def test_memory_of_a_program_counts_shared_buffers_once():
  step = jax.jit(lambda x: x + 1, donate_argnums=0)
  program = compile_for(step, jax.ShapeDtypeStruct((1000,), jnp.float32))
  assert program.memory_bytes - program.temporary_bytes == 4000


def test_cache_is_off_inside_and_on_again_behind():
  before = jax.config.jax_enable_compilation_cache
  with bench_common.without_cache():
    assert not jax.config.jax_enable_compilation_cache and not bench_common.uses_cache()
  assert jax.config.jax_enable_compilation_cache == before


@pytest.mark.parametrize(
  "flag, said",
  [
    ("--programs=train,asr", "unknown program 'asr' (did you mean 'ar'?)"),
    ("--depths=2,0", "--depths=2,0: give numbers"),
    ("--length=1", "--length=1: give 2 or more"),
    ("--config=nothing.py", "no config file nothing.py"),
  ],
)
def test_bad_flags_are_one_line(capsys, monkeypatch, flag, said):
  monkeypatch.setattr(bench_compile.compiling, "time_sampler", None)  # nothing may start
  assert entry.main(["bench", "compile", "--programs=ar", flag]) == 2
  captured = capsys.readouterr()
  assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""


@pytest.mark.long
def test_verb(capsys):
  small = dict(num_layers=1, d_model=16, num_heads=2, num_kv_heads=1, d_ff=16, vocab_size=32)
  small |= dict(mask_id=31, max_seq_len=64)
  flags = [f"--config.model.{name}={value}" for name, value in small.items()]
  sizes = ["--programs=train,ssmd", "--depths=1,2", "--length=16", "--max_tokens=4", "--json"]
  assert entry.main(["bench", "compile", *sizes, *flags]) == 0
  found = json.loads(capsys.readouterr().out)
  programs = [(row["program"], row["num_layers"]) for row in found["rows"]]
  assert programs == [("train sbd", 1), ("train sbd", 2), ("ssmd", 1), ("ssmd", 2)]
  assert all(row["seconds"] > 0 and row["cpu_seconds"] > 0 for row in found["rows"])
  assert found["config"] == "preset:llama31_8b_sbd" and "git_commit" in found
