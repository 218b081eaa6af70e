"""Decoding settings by name: from a `DecoderConfig` to a sampler.

A new method or reveal rule is one entry of METHODS or RULES. Each entry says which settings it
reads, so that a setting without effect is an error instead of a surprise, and so that a recorded
point of a sweep holds what mattered and nothing else.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sbdjax.cli import diffusion_decoders, fillers, jacobi_decoders, sbd_decoders
from sbdjax.cli.diffusion_decoders import AUTO
from sbdjax.cli.flags import parse_fields
from sbdjax.cli.sbd_decoders import DRAFTING, RULES, VERIFY, Numbers
from sbdjax.corruption import MASK_SCHEDULES
from sbdjax.decode import canvas as cv
from sbdjax.decode import sampling, select
from sbdjax.decode.base import Limits, Sampler
from sbdjax.decode.forward import CACHES, DRAFT_MODES
from sbdjax.errors import UsageError
from sbdjax.interop.settings import GenerationDefaults
from sbdjax.lm import LM
from sbdjax.settings import nearest, to_dataclass
from sbdjax.sigma_lm import SigmaLM

# Settings handed to the compiled program as numbers: changing them compiles nothing.
TRACED = (
  "gamma",
  "f",
  "tau",
  "tokens_per_step",
  "threshold",
  "steps_per_block",
  "steps",
  "n_inner",
)


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """How to decode.

  Attributes:
    name: the method, a key of METHODS.
    max_tokens: largest number of generated tokens of a prompt. 0 with mdm and ssmd: only the mask
      tokens of the prompt are filled.
    temperature: 0 is greedy, otherwise tokens are drawn from softmax(logits / temperature).
    top_k: draw from the `top_k` most probable tokens only; 0: from all.
    top_p: draw from the smallest set of tokens with this mass; 1: from all.
    block_size: k, tokens of a block. A block-causal checkpoint has its own.
    rule: which masked positions a forward reveals, a key of RULES (sbd).
    gamma: entropy bound in nats (rules eb_entropy, eb_confidence, eb_margin, entropy_threshold).
    f: of the rule factor.
    tau: smallest confidence of the rule confidence_threshold.
    tokens_per_step: positions a forward of the rule top_k.
    score: what positions are sorted by, a key of `select.ORDERS` (static, dynamic, freedave); the
      rule top_k knows those of `select.SCORES` only.
    attention: "full" or "block_causal", what the model was trained with; "auto": the checkpoint
      says (static, dynamic, freedave, like all below).
    shifted: the model predicts position i from its output at i - 1; None: the checkpoint says.
    cache: "none", "prefix" or "dual" (full attention), "block" (block-causal); "auto": "block"
      where the attention allows it, else "none".
    steps_per_block: forwards of a block; 0: one a token. Not more than one a token (static, and
      freedave without a threshold).
    threshold: smallest confidence a forward reveals. dynamic: 0.9 if not given. freedave: verifies
      dynamic decoding at this threshold; None: static decoding.
    draft_steps: d, drafts a forward verifies (freedave).
    draft_mode: drafts as rows of a "batch", or as branches of a "tree" with one cache (freedave).
    eager: drafts may run into the next blocks (freedave).
    frugal: spend no forward whose outcome is known, where the published method does (freedave).
    carry: spend no forward to store or to open a block: what the forward that verified its last
      draft computed is kept (freedave, eager).
    early_exit: a row ends with its first block that is nothing but EOS.
    exit_at: "block", as above, or "eos": with its first block that holds an EOS.
    cfg_scale: of classifier-free guidance with the prompt masked; 0: none.
    suppress: tokens that are never chosen.
    drafting: what a forward does, a key of DRAFTING (sbd_verified, like all below).
    points: acceptance points a forward drafts behind; 0: all (drafting fan_out).
    candidates: verify the second choice of every draft too.
    verify: how drafts are accepted, a key of VERIFY (sbd_verified and the Jacobi methods).
    guess: where first drafts come from, a key of `jacobi_decoders.GUESSES` (jacobi, jacobi_window,
      jacobi_multiblock, like `pool` to `num_candidates`).
    num_blocks: K, open at once (jacobi_multiblock; its `eager`: verified text may run into them).
    spawn_ratio: r, the part of a block that is accepted when the next one is opened.
    pool: what of the rejected predictions is tried again, a key of `jacobi_decoders.POOLS`.
    pool_size: n-grams it holds (pool ngrams).
    n_gram: tokens of an n-gram.
    num_candidates: n-grams, or sequences, that a forward verifies beside the drafts.
    unmask: which masks a forward reveals, a key of `fillers.UNMASK` (mdm, like the next two).
    steps: of the reverse process (unmask ancestral); those that reveal nothing are not run.
    noise: its schedule, "linear" or "cosine".
    window: how many tokens a trunk pass may reveal, a key of `fillers.WINDOWS` (ssmd, like all
      below).
    dtau: of the cosine window, about one over the trunk passes.
    slope: of the linear window.
    window_size: of the constant window.
    n_inner: N, draft / verify loops a trunk pass; 0: until the window is used up.
    first_equal: take the draft for the target of a trunk pass's first token.
  """

  name: str = "ar"
  max_tokens: int = 200
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  block_size: int = 16
  rule: str = "eb_entropy"
  gamma: float = 0.1
  f: float = 1.0
  tau: float = 0.9
  tokens_per_step: int = 1
  score: str = "confidence"
  attention: str = AUTO
  shifted: bool | None = None
  cache: str = AUTO
  steps_per_block: int = 0
  threshold: float | None = None
  draft_steps: int = 4
  draft_mode: str = "tree"
  eager: bool = False
  frugal: bool = False
  carry: bool = False
  early_exit: bool = False
  exit_at: str = "block"
  cfg_scale: float = 0.0
  suppress: tuple[int, ...] = ()
  drafting: str = "fan_out"
  points: int = 0
  candidates: bool = False
  verify: str = "exact_match"
  guess: str = "text"
  num_blocks: int = 2
  spawn_ratio: float = 0.85
  pool: str = "none"
  pool_size: int = 256
  n_gram: int = 8
  num_candidates: int = 3
  unmask: str = "ancestral"
  steps: int = 64
  noise: str = "linear"
  window: str = "cosine"
  dtau: float = 0.05
  slope: float = 0.25
  window_size: int = 8
  n_inner: int = 1
  first_equal: bool = False

  def __post_init__(self):
    choices = {
      "name": METHODS,
      "rule": RULES,
      "score": select.ORDERS,
      "attention": (AUTO, *cv.ATTENTION),
      "cache": (AUTO, *CACHES),
      "draft_mode": DRAFT_MODES,
      "exit_at": ("block", "eos"),
      "drafting": DRAFTING,
      "verify": VERIFY,
      "unmask": fillers.UNMASK,
      "noise": MASK_SCHEDULES,
      "window": fillers.WINDOWS,
      "guess": jacobi_decoders.GUESSES,
      "pool": jacobi_decoders.POOLS,
    }
    for field, known in choices.items():
      value = getattr(self, field)
      if value not in known:
        raise UsageError(
          f"decoder.{field}={value!r}{nearest(value, known)}: choose one of {', '.join(known)}"
        )
    positive = ("max_tokens", "block_size", "tokens_per_step", "draft_steps", "steps")
    for field in (*positive, "window_size"):
      least = 0 if field == "max_tokens" and METHODS[self.name].any_order else 1
      if getattr(self, field) < least:
        raise UsageError(f"decoder.{field}={getattr(self, field)} must be at least {least}")
    if self.name == "dynamic" and self.threshold is None:
      object.__setattr__(self, "threshold", 0.9)
    at_least_0 = ("gamma", "f", "tau", "steps_per_block", "threshold", "cfg_scale", "points")
    for field in (*at_least_0, "n_inner"):
      if getattr(self, field) is not None and not getattr(self, field) >= 0:  # NaN fails too
        raise UsageError(f"decoder.{field}={getattr(self, field)} must not be negative")
    sampling.make_choice(self.temperature, self.top_k, self.top_p)


class Canvas(NamedTuple):
  """The tokens a method is working on, for display.

  Attributes:
    start_B: int32, index of the first.
    size: how many.
    end_B: int32, there is nothing from this index on; None: there always is.
  """

  start_B: jax.Array
  size: int
  end_B: jax.Array | None = None


class Method(NamedTuple):
  """A decoding method by name.

  Attributes:
    reads: config -> fields it depends on, beyond those all methods read.
    build: (lm, limits, config, numbers) -> Sampler.
    canvas: (state, config) -> Canvas.
    tried: state -> int32 [B, size], what drafts proposed for the tokens of the canvas that the last
      forward worked on, -1 for nothing; None for methods that do not draft.
    counts_prefill: records count the prompt's forward in `nfe` too, as papers on diffusion models
      do: whether there is one depends on the cache and the prompt.
    models: the kinds of model it decodes.
    any_order: a prompt may be empty, and hold mask tokens anywhere, which are filled.
  """

  reads: Callable[[DecoderConfig], tuple[str, ...]]
  build: Callable[[LM, Limits, DecoderConfig, Numbers], Sampler]
  canvas: Callable[[Any, DecoderConfig], Canvas]
  tried: Callable[[Any], jax.Array] | None = None
  counts_prefill: bool = False
  models: tuple[type, ...] = (LM,)
  any_order: bool = False


def _build_jacobi(lm: LM, limits: Limits, config: DecoderConfig, numbers: Numbers) -> Sampler:
  del numbers
  return jacobi_decoders.build(lm, limits, config, VERIFY[config.verify](config))


METHODS: dict[str, Method] = {
  "ar": Method(
    reads=lambda config: (),
    build=sbd_decoders.build_ar,
    canvas=lambda state, config: Canvas(state.out.length_B, 0),
  ),
  "sbd": Method(
    reads=sbd_decoders.sbd_reads,
    build=sbd_decoders.build_sbd,
    canvas=lambda state, config: Canvas(state.block_start_B, config.block_size),
  ),
  "sbd_verified": Method(
    reads=sbd_decoders.verified_reads,
    build=sbd_decoders.build_verified,
    # As many tokens as one forward may add.
    canvas=lambda state, config: Canvas(state.out.length_B, config.block_size + 1),
    tried=lambda state: jnp.pad(state.tried_BxM, ((0, 0), (0, 2)), constant_values=-1),
  ),
  "static": Method(
    reads=diffusion_decoders.reads("steps_per_block"),
    build=diffusion_decoders.build,
    canvas=lambda state, config: Canvas(state.start_B, config.block_size, state.end_B),
    counts_prefill=True,
  ),
  "dynamic": Method(
    reads=diffusion_decoders.reads("threshold"),
    build=diffusion_decoders.build,
    canvas=lambda state, config: Canvas(state.start_B, config.block_size, state.end_B),
    counts_prefill=True,
  ),
  "freedave": Method(
    reads=diffusion_decoders.freedave_reads,
    build=diffusion_decoders.build_freedave,
    canvas=lambda state, config: Canvas(
      state.canvas.start_B, state.tried_BxW.shape[1], state.canvas.end_B
    ),
    tried=lambda state: state.tried_BxW,
    counts_prefill=True,
  ),
  "mdm": Method(
    reads=fillers.mdm_reads,
    build=fillers.build_mdm,
    canvas=lambda state, config: Canvas(state.out.prompt_len_B, config.max_tokens, state.end_B),
    models=(LM, SigmaLM),
    any_order=True,
  ),
  "ssmd": Method(
    reads=fillers.ssmd_reads,
    build=fillers.build_ssmd,
    canvas=lambda state, config: Canvas(state.out.prompt_len_B, config.max_tokens, state.end_B),
    models=(SigmaLM,),
    any_order=True,
  ),
} | {
  name: Method(
    reads=jacobi_decoders.reads,
    build=_build_jacobi,
    # The drafts: the view shows them turn into text.
    canvas=lambda state, config: Canvas(
      state.out.length_B,
      jacobi_decoders.columns(config),
      state.plan.end_B + config.block_size * state.plan.blocks_B,
    ),
  )
  for name in jacobi_decoders.DRAFTS
}


def used_fields(config: DecoderConfig) -> tuple[str, ...]:
  """The fields that have an effect, given the others."""
  drawn = ("top_k", "top_p") if config.temperature > 0 else ()
  return ("name", "max_tokens", "temperature", *drawn, *METHODS[config.name].reads(config))


def settings_of(config: DecoderConfig) -> dict[str, Any]:
  """The settings that have an effect, for records."""
  return {name: getattr(config, name) for name in used_fields(config)}


def without_effect(config: DecoderConfig, given: Iterable[str]) -> str:
  """Which of the `given` fields have no effect, as a sentence; "" where all have one."""
  used = used_fields(config)
  idle = [f"decoder.{name}" for name in given if name not in used]
  if not idle:
    return ""
  return (
    f"{', '.join(idle)} has no effect here: with decoder.name={config.name} the settings are "
    f"{', '.join(used)} (others belong to another name, rule or temperature)"
  )


def check_used(config: DecoderConfig, given: Iterable[str]):
  """Raises UsageError for fields without effect: in a sweep they would label equal points apart."""
  if sentence := without_effect(config, given):
    raise UsageError(sentence)


def for_checkpoint(
  config: DecoderConfig, generation: GenerationDefaults, given: Collection[str]
) -> DecoderConfig:
  """`config` with what the checkpoint knows better: attention, shift, and its block size.

  Args:
    given: fields the user set; those stay.
  """
  if "attention" not in METHODS[config.name].reads(config):
    return config
  known = {"shifted": generation.shifted}
  if generation.attention in cv.ATTENTION:
    known["attention"] = generation.attention
  if generation.block_size:
    known["block_size"] = generation.block_size
  return dataclasses.replace(config, **{n: v for n, v in known.items() if n not in given})


def from_flags(texts: Mapping[str, str]) -> DecoderConfig:
  """The config of `--decoder.field=text` flags.

  A field without effect is noted on stderr and left alone, so that a script may loop over methods
  with one set of flags.

  Raises:
    UsageError: an unknown field or a value out of range.
  """
  fields = parse_fields(DecoderConfig, texts, "decoder")
  config = to_dataclass(DecoderConfig, fields, "decoder")
  if sentence := without_effect(config, fields):
    print(f"note: {sentence}", file=sys.stderr)
  return config


def numbers_of(config: DecoderConfig) -> dict[str, Any]:
  """The settings a compiled program takes as arguments."""
  return {name: getattr(config, name) for name in TRACED}


def static_part(config: DecoderConfig) -> DecoderConfig:
  """What a compiled program depends on; equal for configs that differ in `numbers_of` alone."""
  defaults = {f.name: f.default for f in dataclasses.fields(config)}
  return dataclasses.replace(config, **{name: defaults[name] for name in TRACED})


def make_sampler(
  lm: LM | SigmaLM, config: DecoderConfig, eos_ids: tuple[int, ...], numbers: Numbers | None = None
) -> Sampler:
  """The sampler of `config`; `numbers` (default: its own) may be traced.

  Raises:
    UsageError: the model cannot be decoded this way (no mask token, or no causal blocks).
  """
  method = METHODS[config.name]
  if not isinstance(lm, method.models):
    known = [name for name, other in METHODS.items() if isinstance(lm, other.models)]
    raise UsageError(
      f"decoder.name={config.name} is not for this kind of model: choose one of {', '.join(known)}"
    )
  # Buffers have room for one token at least.
  limits = Limits(max(config.max_tokens, 1), eos_ids, None if config.max_tokens else 0)
  numbers = numbers_of(config) if numbers is None else numbers
  return method.build(lm, limits, config, numbers)
