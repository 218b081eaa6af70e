"""The public functions: open a model, generate, stream, score, train."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from sbdjax import prompts as prompting
from sbdjax.batch.request import Request
from sbdjax.batch.request import strings as _strings
from sbdjax.batch.rows import Encoder, Row
from sbdjax.batch.run import Batch
from sbdjax.decode.any_order.mdm import predictor
from sbdjax.decode.any_order.ssmd import SSMD
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.causal.sbd import SBD
from sbdjax.decode.decoding import Decoding
from sbdjax.decode.diffusion.static import Static
from sbdjax.decode.generate import Decoder, Result, check_prompt
from sbdjax.decode.method import Method
from sbdjax.decode.programs import Shared, shared
from sbdjax.decode.stops import Stops
from sbdjax.decode.stream import Streamer
from sbdjax.errors import UsageError
from sbdjax.evals.judge import Judge
from sbdjax.interop.pretrained import EMBEDDED, Pretrained, load_pretrained
from sbdjax.likelihood import elbo
from sbdjax.lm import LM
from sbdjax.nn.config import need_mask_token
from sbdjax.sigma_lm import SigmaLM

# A text, or its token ids.
Text = str | Sequence[int]
# With settings of its own, or without.
Prompt = Text | Request


@dataclasses.dataclass(frozen=True)
class Output:
  """What a method made of one prompt.

  Attributes:
    text: the generated text, without the EOS or the stop string that ended it.
    tokens: ids of the generated tokens, up to and including the first EOS or the token that completes
      a stop string.
    nfe: network forwards of this prompt. The prompt's own forward is not counted, except for
      diffusion models, as their papers count it; of a self-speculative model a forward of all its
      blocks is the unit, so it may be a fraction.
    tpf: generated tokens per forward, len(tokens) / nfe.
    finish: "eos", "stop" (a stop string) or "length"; "open" while `stream` has not ended.
    result: everything that was counted; see `sbdjax.decode.Result`.
    id: of the request; the prompt's place among all, from 0 on, where it has none.
    meta: of the request.
  """

  text: str
  tokens: list[int]
  nfe: float
  tpf: float
  finish: str
  result: Result
  id: str | int = 0
  meta: Any = None


def default_method(model: Pretrained) -> Method:
  """What `generate` uses where no method is given: the model's own way to be decoded.

  SSMD for a model with causal blocks in any order, static decoding for a diffusion language model,
  SBD for a next-token model with a mask token, else AR.
  """
  if isinstance(model.lm, SigmaLM):
    return SSMD()
  if model.generation.attention != "causal":
    return Static()
  return AR() if model.lm.config.mask_id is None else SBD()


def generate(
  model: Pretrained | str | os.PathLike,
  prompts: Prompt | Iterable[Prompt],
  method: Method | None = None,
  *,
  max_tokens: int = 200,
  seed: int = 0,
  batch_size: int = 16,
  stop: str | Sequence[str] = (),
) -> Iterator[Output]:
  """Continues prompts, in order, `batch_size` at a time.

  What the checkpoint says of its decoding (EOS, attention, shift, block size) holds where `method`
  leaves it open. Calls with one opened model share compiled programs: numbers such as gamma may
  differ between them, and lengths and numbers of prompts and `max_tokens` that are about the same
  (they are rounded up; see `sbdjax.decode.sizes`). Open a checkpoint once with `load_pretrained` and hand it
  over: a path is read again by every call.

  Args:
    model: an opened checkpoint, or what `load_pretrained` opens.
    prompts: a text or its token ids, or several of them; or `Request`s, which may have limits, seeds,
      stop strings and EOS tokens of their own, and are decoded as by `generate_many`.
    method: a decoding method with its settings; None: `default_method(model)`.
    max_tokens: largest number of generated tokens of a prompt.
    seed: of the noise, where tokens are drawn. Prompt i has its own noise whatever `batch_size` is,
      and a request with an id that of the id.
    batch_size: prompts decoded together.
    stop: strings that end a text. They are found while decoding: nothing after them is run, and
      `nfe` ends there.

  Yields:
    One `Output` per prompt.

  Raises:
    UsageError: prompts the model cannot take, or a method that does not fit the model.

  Example:
    >>> model = sbdjax.load_pretrained("stories260K-sbd")
    >>> method = sbdjax.decode.SBD(block_size=8, rule=sbdjax.decode.EBEntropy(gamma=0.2))
    >>> for r in sbdjax.generate(model, ["Once upon a time"], method, max_tokens=100):
    ...   print(r.text, r.tpf)
  """
  opened, decoding = _prepare(model, method, max_tokens)
  several, strings = _several(prompts), _strings(stop)
  if any(isinstance(prompt, Request) for prompt in several):
    rows = list(Encoder(opened, decoding, strings).rows(map(_request, several)))
    batch = Batch(opened, decoding, seed, batch_size or len(rows), using=_kept(opened.lm).shared)
    return _in_order(_many(batch, rows), len(rows))
  ids = [_ids(opened, prompt) for prompt in several]
  prompting.check(ids, opened, decoding)
  decoder = _decoder(opened.lm, _limits(opened, decoding, strings))
  key = jax.random.key(seed)
  return (
    _output(opened, decoding.method, result, strings, id=i)
    for i, result in enumerate(
      decoder.generate(decoding.method, opened.params, ids, key, batch_size)
    )
  )


def generate_many(
  model: Pretrained | str | os.PathLike,
  requests: Iterable[Prompt],
  method: Method | None = None,
  *,
  max_tokens: int = 200,
  seed: int = 0,
  batch_size: int = 32,
  stop: str | Sequence[str] = (),
  window: int = 4096,
) -> Iterator[Output]:
  """Continues any number of prompts, and yields each as it ends, whatever the others do.

  A prompt that ends makes room for the next one inside the running program (see
  `sbdjax.decode.continuous`), so that short texts do not wait for long ones. What a request becomes
  depends on nothing but the request: not on its neighbours, their order or `batch_size`.

  Args:
    model: as of `generate`.
    requests: prompts or `Request`s, or a single one; an iterator is read `window` requests ahead,
      never to its end.
    method: as of `generate`.
    max_tokens: of requests that have no limit of their own.
    seed: of the noise of requests that have no seed of their own. It is that of the request's id;
      of a prompt without one, that of its place.
    batch_size: prompts decoded together.
    stop: strings that end the texts of requests that have none of their own.
    window: requests that are read ahead and grouped by length: more of them fill the device better.

  Yields:
    One `Output` per request, in the order in which they end; `id` says which it is.

  Raises:
    UsageError: a request that the model cannot take, once it is read, or a method that does not fit.

  Example:
    >>> requests = (sbdjax.Request(text, id=name, max_tokens=64) for name, text in texts.items())
    >>> found = {r.id: r.text for r in sbdjax.generate_many("stories260K-sbd", requests)}
  """
  opened, decoding = _prepare(model, method, max_tokens)
  # Other iterables may be endless, and are read as they are needed.
  there = isinstance(requests, str | Request | Sequence | np.ndarray)
  some = _several(requests) if there else requests
  rows = Encoder(opened, decoding, _strings(stop)).rows(map(_request, some))
  using = _kept(opened.lm).shared
  batch = Batch(opened, decoding, seed, batch_size, window, using=using)
  return (output for _, output in _many(batch, rows))


def _many(batch: Batch, rows: Iterable[Row]) -> Iterator[tuple[int, Output]]:
  """(place, output) of each row, as they end."""
  for row, result in batch.run(batch.decoder(), rows):
    output = _output(batch.model, batch.decoding.method, result, row.stop, row.eos_ids)
    yield row.place, dataclasses.replace(output, id=row.id, meta=row.meta)


def _in_order(found: Iterator[tuple[int, Output]], count: int) -> Iterator[Output]:
  """By place; what ends early waits for those before it."""
  early: dict[int, Output] = {}
  for place in range(count):
    while place not in early:
      early.update([next(found)])
    yield early.pop(place)


def stream(
  model: Pretrained | str | os.PathLike,
  prompt: Prompt,
  method: Method | None = None,
  *,
  max_tokens: int = 200,
  seed: int = 0,
  stop: str | Sequence[str] = (),
) -> Iterator[Output]:
  """Continues one prompt and shows it as it happens: the text so far after every forward.

  The last `Output` equals that of `generate` with the same arguments.

  Args:
    model: an opened checkpoint, or what `load_pretrained` opens.
    prompt: a text, token ids, or a `Request`.
    method: a decoding method; None: `default_method(model)`.
    max_tokens: largest number of generated tokens.
    seed: of the noise, where tokens are drawn.
    stop: strings that end the text, as of `generate`.

  Yields:
    An `Output` after the prompt's forward, and one after each further forward.

  Raises:
    UsageError: as `generate`.

  Example:
    >>> for r in sbdjax.stream("stories260K-sbd", "Once upon a time", max_tokens=50):
    ...   print(r.nfe, r.text)
  """
  opened, decoding = _prepare(model, method, max_tokens)
  row = Encoder(opened, decoding, _strings(stop)).row(_request(prompt), 0, "prompt 0")
  limits = _limits(opened, Decoding(decoding.method, row.max_tokens), row.stop, row.eos_ids)
  using = _kept(opened.lm).shared
  ids = [row.tokens.tolist()]
  streamer = Streamer(opened.lm, limits, decoding.method, opened.params, ids, using)
  key = jax.random.key(seed if row.seed is None else row.seed)
  for frame in streamer.frames(0, key, row.number):
    output = _output(opened, decoding.method, frame.result, row.stop, row.eos_ids)
    output = dataclasses.replace(output, id=row.id, meta=row.meta)
    yield output if frame.done else dataclasses.replace(output, finish="open")


@dataclasses.dataclass(frozen=True)
class Score:
  """How likely a text is under a model.

  Attributes:
    nats: -log p of its tokens; for an estimate that is a bound, at most that large.
    tokens: how many tokens were scored.
    estimator: "exact", or what bounds the value from above.
    samples: random orders the estimate is a mean over; 1 where it is exact.
    seed: of those orders.
  """

  nats: float
  tokens: int
  estimator: str = "exact"
  samples: int = 1
  seed: int = 0

  @property
  def perplexity(self) -> float:
    """exp of the nats per token."""
    return math.exp(self.nats / self.tokens)


def score(
  model: Pretrained | str | os.PathLike,
  texts: Text | Iterable[Text],
  *,
  samples: int = 16,
  seed: int = 0,
) -> list[Score]:
  """How likely texts are: exact for next-token models, the any-order bound for masked diffusion.

  A next-token model scores every token but the first (the bos, where the vocabulary has one).
  For a model with full attention it is the any-order bound (MD4; Zheng et al. 2024), with one
  random number of masks per sample; of a self-speculative model, that of its drafts (its own
  likelihood is in `sbdjax.likelihood.ssmd`).

  Args:
    model: an opened checkpoint, or what `load_pretrained` opens.
    texts: a text or its token ids, or several of them.
    samples: of the bound, per text.
    seed: of the bound.

  Returns:
    One `Score` per text.

  Raises:
    UsageError: no texts, one with nothing to score or longer than the context, a token that the model
      does not know, or a block-causal model.

  Example:
    >>> [s.nats / s.tokens for s in sbdjax.score("stories260K", ["Once upon a time"])]
  """
  opened = _open(model)
  rows = [_ids(opened, text) for text in _several(texts)]
  if not rows:
    raise UsageError("no texts to score")
  config = opened.lm.config
  for i, row in enumerate(rows):
    check_prompt(row, 0, config.max_seq_len, config.vocab_size, f"text {i}")
  attention = "full" if isinstance(opened.lm, SigmaLM) else opened.generation.attention
  if attention == "causal":
    if any(len(row) < 2 for row in rows):
      raise UsageError("a text to score has fewer than two tokens: nothing follows the first one")
    judge = Judge(opened.lm, opened.params, programs=_kept(opened.lm).shared.programs)
    scored = judge.score([r[:1] for r in rows], [r[1:] for r in rows])
    pairs = zip(scored.nll, scored.tokens, strict=True)
    return [Score(float(nats), int(tokens)) for nats, tokens in pairs]
  if attention != "full" or opened.generation.shifted:
    raise UsageError(
      "score knows next-token models and masked diffusion with full attention; this checkpoint is "
      f"decoded with attention={attention}"
    )
  return [_bound(opened, row, samples, seed) for row in rows]


def _bound(model: Pretrained, row: Sequence[int], samples: int, seed: int) -> Score:
  if not len(row):
    raise UsageError("a text to score is empty")
  mask_id = need_mask_token(model.lm.config, "it has no any-order bound")
  tokens = np.asarray([row], np.int32)
  keys = jax.random.key(seed)[None]
  log_p = elbo.any_order(predictor(model.lm), mask_id, model.params, tokens, keys, samples, None)
  nats = -float(np.mean(jax.device_get(log_p)))
  return Score(nats, len(row), "any-order bound", samples, seed)


def _prepare(
  model: Pretrained | str | os.PathLike, method: Method | None, max_tokens: int
) -> tuple[Pretrained, Decoding]:
  """The opened model, and the settings with the checkpoint's defaults."""
  opened = _open(model)
  if method is not None and not isinstance(method, Method):
    raise UsageError(
      f"method={method!r}: give a decoding method such as sbdjax.decode.SBD(block_size=8)"
    )
  chosen = default_method(opened) if method is None else method
  return opened, Decoding(chosen, max_tokens).for_model(opened.lm, opened.generation)


def _open(model: Pretrained | str | os.PathLike) -> Pretrained:
  if isinstance(model, Pretrained):
    return prompting.with_tokenizer(model)
  name = os.fspath(model)
  # Files may change between two calls, what ships inside the package does not.
  return prompting.with_tokenizer(_shipped(name) if name in EMBEDDED else load_pretrained(name))


@functools.lru_cache(maxsize=1)
def _shipped(name: str) -> Pretrained:
  return load_pretrained(name)


def _several(prompts: Prompt | Iterable[Prompt]) -> list[Any]:
  """A list, also of a single prompt."""
  if isinstance(prompts, str | Request):
    return [prompts]
  several: list[Any] = list(prompts)
  if several and all(isinstance(token, (int, np.integer)) for token in several):
    return [several]
  return several


def _request(prompt: Prompt) -> Request:
  return prompt if isinstance(prompt, Request) else Request(prompt)


def _ids(model: Pretrained, prompt: Text) -> list[int]:
  if isinstance(prompt, str):
    return prompting.encode(model.need_tokenizer(), prompt)
  return [int(token) for token in prompt]


class _Kept(NamedTuple):
  """What is kept of the model in use.

  Attributes:
    shared: its programs, all of them together as many as one decoder keeps, and parameters.
    decoders: the last `_DECODERS` of them.
    stops: automata of as many sets of stop strings.
  """

  shared: Shared
  decoders: collections.OrderedDict[Limits, Decoder]
  stops: collections.OrderedDict[tuple[str, ...], Stops | None]


_DECODERS = 8


@functools.lru_cache(maxsize=1)
def _kept(lm: LM | SigmaLM) -> _Kept:
  """That of the model before goes, with what it held of it."""
  return _Kept(shared(lm), collections.OrderedDict(), collections.OrderedDict())


def _limits(
  model: Pretrained,
  decoding: Decoding,
  stop: tuple[str, ...],
  eos_ids: tuple[int, ...] | None = None,
) -> Limits:
  """When rows end; the same strings are the same object, so that their decoder is found again."""
  known = _kept(model.lm).stops
  if stop not in known:
    known[stop] = prompting.stops_of(model, stop)
  while len(known) > _DECODERS:
    known.popitem(last=False)
  ends = model.generation.eos_ids if eos_ids is None else eos_ids
  return decoding.limits(ends, known.get(stop))


def _decoder(lm: LM | SigmaLM, limits: Limits) -> Decoder:
  kept = _kept(lm)
  decoder = kept.decoders.pop(limits, None) or Decoder(lm, limits, using=kept.shared)
  kept.decoders[limits] = decoder  # now the last
  while len(kept.decoders) > _DECODERS:
    kept.decoders.popitem(last=False)
  return decoder


def _output(
  model: Pretrained,
  method: Method,
  result: Result,
  stop: Sequence[str],
  eos_ids: tuple[int, ...] | None = None,
  id: str | int = 0,
) -> Output:
  nfe = result.nfe + (result.prefill_nfe if method.counts_prefill else 0)
  tokens = result.text_tokens
  return Output(
    text=prompting.answer_text(model, result.prompt_tokens, tokens, stop, eos_ids),
    tokens=tokens,
    nfe=nfe,
    tpf=len(tokens) / nfe if nfe else 0.0,
    finish=result.finish,
    result=result,
    id=id,
  )
