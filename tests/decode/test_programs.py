"""What the compiled loops must not do, read off their programs."""

import re

import jax
import numpy as np
import pytest

from sbdjax.decode import base
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.causal.drafting import Alternating, FanOut, Fused
from sbdjax.decode.causal.lookup import TextLookup
from sbdjax.decode.causal.sbd import SBD
from sbdjax.decode.causal.verified_sbd import VerifiedSBD
from sbdjax.decode.jacobi.jacobi import JacobiWindow
from tests import models

METHODS = (
  AR(),
  SBD(4),
  VerifiedSBD(4, Alternating()),
  VerifiedSBD(4, Fused()),
  VerifiedSBD(4, FanOut(2), candidates=True),
  VerifiedSBD(4, Alternating(), lookup=TextLookup()),
  JacobiWindow(4),
)


# AR has no branch; of verified decoding the schedule with most branches always runs.
OFTEN = (SBD(4), VerifiedSBD(4, FanOut(2), candidates=True), JacobiWindow(4))


@pytest.mark.parametrize(
  "method",
  [pytest.param(m, marks=[pytest.mark.long] * (m not in OFTEN)) for m in METHODS],
  ids=lambda m: f"{type(m).__name__}",
)
def test_no_step_copies_the_cache(method):
  """A cache that passes through a branch is copied whole; only the first one of the loop may be."""
  lm = models.lm_of(mask_id=12)

  def run(params, prompt, length, key):
    return base.decode(method.sampler(lm, base.Limits(20)), params, prompt, length, key).out

  prompt = np.ones((1, 8), np.int32)
  args = models.random_params(lm), prompt, np.array([8], np.int32), jax.random.key(0)[None]
  program = jax.jit(run).lower(*args).compile().as_text()
  c = lm.config
  shape = rf"f32\[{c.num_layers},1,{c.num_kv_heads},(?:32|40),{c.head_dim}\]"
  assert re.search(shape, program)
  assert len(re.findall(rf"= {shape}\S* copy\(", program)) <= 2
