"""What is alive at the worst point: by hand, and of a program whose largest array is known."""

import jax
import jax.numpy as jnp

from sbdjax.train import buffers
from sbdjax.train.buffers import _Instruction, _Slice


def _slice(name, place, size, start, end, shape="f32[1]"):
  made = _Instruction(name, b"add", b"", "", 0, (), ())
  return _Slice((0, place), size, start, end, shape, made)


def test_the_worst_step_is_that_with_most_bytes_alive():
  slices = [
    _slice("early", 0, 60, 0, 2),
    _slice("long", 60, 10, 1, 9),
    _slice("one", 0, 40, 5, 6, "f32[10]"),
    _slice("two", 70, 30, 6, 7),
    _slice("in place of one", 0, 40, 6, 8),  # shares its place: counted once
  ]
  # Step 1: 60 + 10; step 6: 40 + 10 + 30.
  found = buffers.largest(slices, 2)
  assert [(b.bytes, b.made_by) for b in found] == [(40, "one"), (30, "two")]


def test_arrays_made_alike_stand_together():
  slices = [_slice("x", place, 8, 0, 1) for place in (0, 8, 16)]
  assert buffers.largest(slices, 5) == (buffers.Buffer(24, 3, "f32[1]", "x"),)


def test_the_residuals_of_a_scan_are_the_largest():
  layers, rows, width = 6, 96, 32

  def loss(w, x):
    y, _ = jax.lax.scan(lambda c, wi: (jnp.tanh(c @ wi), None), x, w)
    return jnp.sum(y)

  shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((layers, width, width), (rows, width))]
  compiled = jax.jit(jax.grad(loss)).lower(*shapes).compile()
  found = buffers.at_peak(compiled)
  assert found[0].shape == f"f32[{layers},{rows},{width}]" and "while" in found[0].made_by
  assert found[0].bytes % (4 * layers * rows * width) == 0
  assert sum(b.bytes for b in found) <= compiled.memory_analysis().temp_size_in_bytes
  assert [b.bytes for b in found] == sorted((b.bytes for b in found), reverse=True)
