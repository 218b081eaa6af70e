"""PyTorch's FlexAttention under the same masks. Optional; nothing else imports torch for attention."""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from sbdjax import masks
from sbdjax.bench import cases
from sbdjax.bench.attention import AttentionShape, AttentionTiming, failed, measured
from sbdjax.bench.timing import seconds_a_call


def missing() -> str:
  """Why it cannot be measured here, or ""."""
  if importlib.util.find_spec("torch") is None:
    return "torch is not installed"
  import torch

  return "" if torch.cuda.is_available() else "torch finds no CUDA device"


def block_mask(mask: masks.Mask, num_queries: int, num_keys: int, device: str) -> Any:
  """FlexAttention's block mask of a rule, from its intervals."""
  import torch
  from torch.nn.attention.flex_attention import create_block_mask

  bounds = [
    torch.tensor(np.array(x, np.int32)[0], device=device)
    for x in mask.intervals(num_queries, num_keys)
  ]

  def visible(b, h, query, key):
    inside = [
      (key >= start[query]) & (key < end[query])
      for start, end in zip(bounds[::2], bounds[1::2], strict=True)
    ]
    return functools.reduce(lambda x, y: x | y, inside)

  return create_block_mask(visible, None, None, num_queries, num_keys, device=device)


def program(work: str, attend: Callable) -> Callable:
  """(q, k, v, d_o, block mask) -> o, or (o, gradients); `attend` is flex_attention, compiled or not."""
  import torch

  def forward(q, k, v, d_o, plan):
    del d_o
    with torch.no_grad():
      return attend(q, k, v, block_mask=plan, enable_gqa=True)

  def both(q, k, v, d_o, plan):
    o = attend(q, k, v, block_mask=plan, enable_gqa=True)
    return o, torch.autograd.grad(o, (q, k, v), d_o)

  return {"forward": forward, "forward+backward": both}[work]


def operands(shape: AttentionShape, length: int, device: str) -> list:
  """q, k, v and the gradient of the output, normal numbers, [B, heads, T, Dh]."""
  import torch

  heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads, shape.num_heads)
  generator = torch.Generator(device).manual_seed(0)
  return [
    torch.randn(
      (shape.batch, n, length, shape.head_dim),
      dtype=getattr(torch, shape.dtype),
      device=device,
      generator=generator,
      requires_grad=i < 3,
    )
    for i, n in enumerate(heads)
  ]


def measure(
  case: str,
  work: str,
  shape: AttentionShape,
  length: int,
  block_size: int,
  *,
  repeats: int,
  lasting: float,
  device: str = "cuda",
) -> AttentionTiming:
  """As `attention.measure`, on torch's device."""
  rule = cases.TRAINING[case]
  queries = rule.queries(length, block_size)
  row = AttentionTiming(case, "flex", work, length, queries, block_size, shape.batch)
  import torch
  from torch.nn.attention.flex_attention import flex_attention

  try:
    mask = rule.mask(length, block_size, jnp.int32(block_size))
    args = (*operands(shape, queries, device), block_mask(mask, queries, queries, device))
    run = program(work, torch.compile(flex_attention))
    start = time.perf_counter()
    run(*args)
    torch.cuda.synchronize()
    compiling = time.perf_counter() - start
    found = seconds_a_call(
      lambda: run(*args), repeats, lasting=lasting, wait=lambda _: torch.cuda.synchronize()
    )
  except Exception as e:  # whatever torch raises is its result
    return failed(row, e)
  return measured(row, shape, mask, found, compiling)
