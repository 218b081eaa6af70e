"""Losses: (lm, params, batch, key) -> (loss_sum, weight, metrics).

`batch` is a dict:
  tokens        int32 [B, L]
  weights       float32 [B, L], the loss weight of each token as a target (0: prompt, padding)
  positions     int32 [B, L]
  segment_ids   int32 [B, L], equal ids = one document, 0 = padding
  example_id    int32 [B], a global id; all randomness of a row derives from it

Sums and weights are added over devices and microbatches and divided once. `metrics` maps names to
(sum, weight) pairs that are reduced the same way.

A loss is an object of a class derived from `Loss`: its fields are its settings, and calling it is
the loss. `get` finds the class of a name and `register` gives a class of one's own a name; see
`losses.registry`.
"""

from sbdjax.losses.base import Loss
from sbdjax.losses.block_diffusion import BlockDiffusionLoss
from sbdjax.losses.jacobi import JacobiLoss
from sbdjax.losses.mdm import MDMLoss
from sbdjax.losses.ntp import NTPLoss
from sbdjax.losses.registry import get, names, register
from sbdjax.losses.sbd import SBDLoss
from sbdjax.losses.sdtt import SDTTLoss
from sbdjax.losses.ssmd import SSMDLoss

__all__ = [
  "BlockDiffusionLoss",
  "JacobiLoss",
  "Loss",
  "MDMLoss",
  "NTPLoss",
  "SBDLoss",
  "SDTTLoss",
  "SSMDLoss",
  "get",
  "names",
  "register",
]
