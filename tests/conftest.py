"""Environment of every test, fixed before JAX is imported."""

import gc
import importlib.metadata
import importlib.util
import os
import pathlib
import sys

# Only what is set before JAX reads it counts, so nothing above this module may import JAX.
assert "jax" not in sys.modules, "a pytest plugin imported jax before tests/conftest.py"

_CACHE = pathlib.Path(__file__).resolve().parent.parent / ".jax_cache"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Several fake CPU devices on a small machine can deadlock in a collective with fewer threads.
os.environ.setdefault("NPROC", "16")
# Compiling is most of the time these tests take, much of it in many small programs: keep them all,
# so that a second run finds everything compiled.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# The programs are small and run briefly; optimising them takes longer than that saves.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# XLA's older way to emit loops on a CPU compiles in half the time (20 s against 37 s for
# decode/test_lookup), and a small program whole in a tenth less than in parts, which pay only where a
# core is idle. From 0.11 on jaxlib has no such flags, and ends a process that sets one.
if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
  _FLAGS = os.environ.get("XLA_FLAGS", "")
  if "xla_cpu_use_fusion_emitters" not in _FLAGS:  # a subprocess has them already
    _FLAGS += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = _FLAGS.strip()
# Two processes of tests share two cores, where threads of NumPy would wait for each other, spinning.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tracing makes many objects, few of them garbage: looking less often saves 7 % of all time.
gc.set_threshold(100_000, 50, 100)

# Nobody's tuned settings: nothing can be in this folder.
os.environ["SBDJAX_TUNED_DIR"] = os.path.join(os.devnull, "tuned")

# Set by `make parity`, which must not pass because everything was skipped.
if os.environ.get("SBDJAX_PARITY"):
  for _name in ("torch", "transformers"):
    assert importlib.util.find_spec(_name), f'{_name} is missing: pip install -e ".[parity]"'
# By `make harness`.
if os.environ.get("SBDJAX_HARNESS"):
  for _name in ("lm_eval", "math_verify"):
    assert importlib.util.find_spec(_name), f'{_name} is missing: pip install -e ".[eval]"'

import chex  # noqa: E402
import pytest  # noqa: E402
from absl import flags  # noqa: E402

# Grain reads absl flags, which nobody parses under pytest.
flags.FLAGS.mark_as_parsed()


@pytest.fixture(autouse=True)
def _fresh_trace_counts():
  """`chex.assert_max_traces` counts by function name, over all the tests of a process."""
  chex.clear_trace_counter()
