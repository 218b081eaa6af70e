"""The kernels for TPU as a device of `kernels.backend`."""

from __future__ import annotations

from sbdjax.kernels import tpu_decode, tpu_flash
from sbdjax.kernels.backend import Device


def tile(num_queries: int, num_keys: int) -> tuple[int, int]:
  """Tiles for T queries and S keys: large ones feed the matrix unit, small ones skip more."""
  return _block(num_queries), _block(num_keys)


def _block(length: int) -> int:
  return 512 if length >= 4096 else 256 if length >= 1024 else 128


DEVICE = Device(tpu_flash.FLASH, tile, tpu_flash.prepare, tpu_decode.partial, tpu_decode.block_k)
