"""Verified Set Block Decoding: the masked half of an SBD model drafts, its causal half verifies.

An SBD model is two models in one: masks after a text predict k tokens at once, and the causal
half is the next-token model it was before. Here the first drafts for the second, so that the
output is that of autoregressive (AR) decoding, token for token under `verify.ExactMatch`, in
distribution under `verify.Resample`. Not in the SBD paper; kin are PaSS (Monea et al. 2023), BiTA
(Lin et al. 2024, joint generation and verification) and the quadratic decoding of Samragh et al.
2025.

One forward holds a *chain*, the last final token c and the drafts d_1..d_m after it, which the
causal half verifies, and open blocks of k masks after some *points* of the chain, which draft
for the case that exactly this much is accepted. A block begins at the place of the token that
the verification will choose there, so its first mask is wasted and k masks give k - 1 drafts.
Which points a forward drafts after is the schedule, see `drafting`.

With `candidates`, the second choice of each draft is verified as well, as a branch of one token
(and may be a point to draft after): if draft j is rejected and its second choice is what the
target wants, that token's own successor is known in the same forward. This needs common noise.

With a `lookup`, drafts that were found in the row's own text or in a table of n-grams are verified
too, as a second chain after c, the *branch*: [c d_1..d_m | g_1..g_r | second choices | blocks]. What
is accepted of either is a prefix of AR's text, so the longer one counts; this needs common noise as
well. No block stands after the branch: where it wins, the next forward has no drafts of the masked
half. The branch is as long as the rows' drafts need, of the sizes that the look-up has; a forward in
which no row found anything is one without it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax import pytree
from sbdjax.decode import base
from sbdjax.decode.base import Limits, Sampler
from sbdjax.decode.causal.ar import prefill
from sbdjax.decode.causal.drafting import AcceptancePoints, Drafting, FanOut
from sbdjax.decode.causal.lookup import Found, Lookup, NoLookup
from sbdjax.decode.causal.sbd import mask_token
from sbdjax.decode.causal.verified_advance import Advanced, advance, no_drafts
from sbdjax.decode.causal.verified_forward import Tree, VerifiedState
from sbdjax.decode.method import Canvas, Method
from sbdjax.decode.tokens import Greedy, TokenSampler
from sbdjax.decode.verify import ExactMatch, VerifyRule
from sbdjax.lm import LM


@pytree.dataclass
class VerifiedSBD(Method):
  """SBD drafts that the model's own next-token half verifies: the text of AR in fewer forwards.

  Attributes:
    block_size: k, masks of a block, which give k - 1 drafts.
    drafting: what each forward drafts: `Alternating()`, `Fused()`, `FanOut(points)` or, to verify
      nothing but what is looked up, `NoDrafting()`.
    candidates: verify the second choice of every draft too.
    lookup: what looks up drafts in the text, to verify beside the others: `NoLookup()`, or
      `TextLookup()` or `NGramLookup(lookup_table=FILE)`.
    verify: how drafts are accepted.
    token: takes tokens from logits, drafts as well as (under `ExactMatch`) final ones.

  Raises:
    UsageError: block_size < 2, candidates or a lookup without common noise, a token choice that
      the verify rule does not work with, or nothing to verify.
  """

  next_token: ClassVar[bool] = True

  block_size: int = pytree.static(default=16)
  drafting: Drafting = FanOut()
  candidates: bool = pytree.static(default=False)
  lookup: Lookup = NoLookup()
  verify: VerifyRule = ExactMatch()
  token: TokenSampler = Greedy()

  def __post_init__(self) -> None:
    pytree.check(
      self.block_size >= 2,
      f"block_size={self.block_size}: verified decoding needs blocks of at least 2",
    )
    self.verify.check(self.token)
    pytree.check(
      self.verify.common_noise or not self.candidates,
      "candidates need the verify rule exact_match: second choices are no draws",
    )
    pytree.check(
      self.verify.common_noise or not self.lookup.width,
      "lookup needs the verify rule exact_match: what is found in a text is no draw",
    )
    pytree.check(
      self.drafting.drafts or (self.lookup.width > 0 and not self.candidates),
      "drafting=none verifies only what is looked up: set lookup=text, and no candidates",
    )

  def idle(self) -> tuple[str, ...]:
    return () if self.drafting.drafts else ("block_size",)

  @property
  def num_drafts(self) -> int:
    """Drafts of a block: its first mask stands where the verification chooses."""
    return self.block_size - 1 if self.drafting.drafts else 0

  @property
  def most_drafts(self) -> int:
    """Drafts of the longest chain that a forward verifies."""
    return max(self.num_drafts, self.lookup.width)

  def canvas(self, state: VerifiedState) -> Canvas:
    # As many tokens as one forward may add.
    return Canvas(state.out.length_B, self.most_drafts + 2)

  def last_drafts(self, state: VerifiedState) -> jax.Array:
    return jnp.pad(state.last_drafts_BxM, ((0, 0), (0, 2)), constant_values=-1)

  def cache_slots(self, width: int, limits: Limits) -> int:
    # Scratch at the end: a chain that reaches beyond the limit.
    return width + limits.max_tokens + self.most_drafts + 1

  def sampler(self, lm: LM, limits: Limits) -> Sampler:
    k = self.block_size
    # Without drafts of the model a mask only shows, in `stream.Frame`, where there is no text yet.
    mask_id = mask_token(lm) if self.drafting.drafts else lm.config.mask_id
    fill = -1 if mask_id is None else mask_id
    self.lookup.check(lm.config.vocab_size)

    def init(params, prompt_BxP, prompt_len_B, key, kept=None):
      batch, width = prompt_BxP.shape
      capacity = self.cache_slots(width, limits)
      out = base.start(prompt_BxP, prompt_len_B, width + limits.max_tokens, fill, limits.stops)
      cache = prefill(lm, params, out.tokens_BxC[:, :width], out.prompt_len_B - 1, capacity, kept)
      out = out.replace(prefill_nfe_B=out.prefill_nfe_B + 1)
      drafts = no_drafts(self, batch, lm.config.vocab_size)
      nothing_BxM = jnp.full((batch, self.most_drafts), -1, jnp.int32)
      return VerifiedState(out, cache, base.row_keys(key, batch), drafts, nothing_BxM)

    def advance_over(
      params: Any,
      state: VerifiedState,
      num_chain: int,
      found: Found | None,
      points: AcceptancePoints | None,
    ) -> Advanced:
      num_seconds = num_chain - 1 if self.candidates else 0
      tree = Tree(num_chain, found, num_seconds, points)
      return advance(self, lm, limits, params, state, tree)

    def verify_and_draft(params: Any, state: VerifiedState, found: Found | None) -> Advanced:
      points = self.drafting(state.drafts, self.candidates)
      return advance_over(params, state, k, found, points)

    def verify_or_draft(params: Any, state: VerifiedState, found: Found | None) -> Advanced:
      points = self.drafting(state.drafts, self.candidates)
      has_drafts_B, open_B = state.drafts.count_B > 0, ~state.out.done_B
      draft = partial(advance_over, params, state, 1, found, points)
      verify = partial(advance_over, params, state, k, found, None)
      some = jnp.any(has_drafts_B & open_B)
      if open_B.shape[0] == 1:
        return jax.lax.cond(some, verify, draft)
      # A row that has just begun, or where a branch has won, drafts, as it would alone, while others
      # may verify.
      lacking = points._replace(valid=points.valid & ~has_drafts_B[:, None])
      both = partial(advance_over, params, state, k, found, lacking)
      others = jnp.any(~has_drafts_B & open_B)
      return jax.lax.cond(some, lambda: jax.lax.cond(others, both, verify), draft)

    def verify_branch(params: Any, state: VerifiedState, found: Found | None) -> Advanced:
      return advance_over(params, state, 1, found, None)

    over_drafts = verify_or_draft if self.drafting.alternates else verify_and_draft
    over_drafts = over_drafts if self.drafting.drafts else verify_branch

    def forward_once(params: Any, state: VerifiedState) -> Advanced:
      if not self.lookup.width:
        return over_drafts(params, state, None)
      found = self.lookup(state.out.tokens_BxC, state.out.length_B)
      most = jnp.max(jnp.where(state.out.done_B, 0, found.count_B))
      branches = [None, *map(found.first, self.lookup.sizes)]
      shorter_S = jnp.array((0, *self.lookup.sizes[:-1]))
      return jax.lax.switch(
        jnp.sum(most > shorter_S), [partial(over_drafts, params, state, x) for x in branches]
      )

    def step(params: Any, state: VerifiedState) -> VerifiedState:
      found, done_B = forward_once(params, state), state.out.done_B
      cache = kv_cache.write(state.cache, *found.entries, found.slots_BxT)
      cache = kv_cache.commit(cache, jnp.where(done_B, 0, found.added_B))
      old = (state.out, state.drafts, state.last_drafts_BxM)
      new = (found.out, found.drafts, found.last_drafts_BxM)
      out, drafts, last_drafts = base.keep_done(done_B, old, new)
      return state.replace(out=out, cache=cache, drafts=drafts, last_drafts_BxM=last_drafts)

    return Sampler(init, step, lambda state: state.out.done_B)
