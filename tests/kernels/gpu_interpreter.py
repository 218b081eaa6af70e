"""GPU kernels on CPU: memory that starts as NaN, and races found."""

import contextlib

import jax
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

needs_interpreter = pytest.mark.skipif(
  jax.__version_info__[:2] < (0, 11),
  reason=f"the kernels and their interpreter need JAX 0.11, this is {jax.__version__}",
)


@contextlib.contextmanager
def interpreted():
  """Runs the kernel called inside in the interpreter; an AssertionError where two accesses race."""
  from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

  params = plgpu.InterpretGPUParams(detect_races=True, uninitialized_memory="nan")
  try:
    with plgpu.force_gpu_interpret_mode(params):
      yield
    # The state is of the last kernel that ran.
    assert not gpu_callbacks.get_races().races_found
  finally:
    gpu_callbacks.reset_gpu_interpret_mode_state()
