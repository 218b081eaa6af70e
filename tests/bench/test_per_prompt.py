"""Methods compared prompt by prompt."""

import jax
import numpy as np
import pytest

from sbdjax.bench import per_prompt
from sbdjax.decode import AR, Alternating, Fused, TextLookup, VerifiedSBD
from sbdjax.decode.base import Limits
from sbdjax.decode.generate import Decoder
from sbdjax.decode.stream import Streamer
from sbdjax.evals.judge import Judge
from sbdjax.interop import load_pretrained

LIMITS = Limits(20, (1,))


@pytest.fixture(scope="module")
def model():
  return load_pretrained("stories260K-sbd")


@pytest.fixture(scope="module")
def prompts(model):
  short, long = "Once upon a time", "Tom saw a cat. Tom saw a dog. " * 12
  return [model.tokenizer.encode(text, bos=True) for text in (short, long)]


@pytest.mark.parametrize(
  "method",
  [
    AR(),
    pytest.param(VerifiedSBD(4, Alternating(), lookup=TextLookup()), marks=pytest.mark.long),
  ],
  ids=["ar", "verified"],
)
@pytest.mark.long
def test_results_are_those_of_whole_prompts(model, prompts, method):
  assert len(prompts[1]) > 128  # so that a part of it is kept
  decoder = per_prompt.PromptDecoder(model.lm, model.params, LIMITS, len(prompts[1]))
  whole = Decoder(model.lm, LIMITS).generate(method, model.params, prompts, jax.random.key(0))
  for prompt, want in zip(prompts, whole, strict=True):
    kept, seconds = decoder.prefill(AR(), prompt)
    got = decoder.run(method, prompt, kept, jax.random.key(0))
    assert (got.text_tokens, got.nfe, got.accepted) == (want.text_tokens, want.nfe, want.accepted)
    assert seconds > 0 and got.seconds > 0


def test_texts_are_judged_as_by_whole_forwards(model, prompts):
  decoder = per_prompt.PromptDecoder(model.lm, model.params, LIMITS, len(prompts[1]))
  texts = [model.tokenizer.encode(text) for text in ("there was", "Tom saw a bird. Tom saw")]
  assert max(map(len, texts)) <= LIMITS.max_tokens
  want = Judge(model.lm, model.params).score(prompts, texts).nll
  for prompt, text, nats in zip(prompts, texts, want, strict=True):
    kept, _ = decoder.prefill(AR(), prompt)
    assert decoder.nll(prompt, kept, text) == pytest.approx(nats, rel=1e-5)


@pytest.mark.parametrize(
  "method",
  [VerifiedSBD(4, Fused()), pytest.param(VerifiedSBD(6, Alternating()), marks=pytest.mark.long)],
)
def test_places_add_up_to_what_the_sampler_counts(model, prompts, method):
  streamer = Streamer(model.lm, Limits(20), method, model.params, prompts[:1])
  *_, last = frames = list(streamer.frames(0, jax.random.key(0)))
  found = per_prompt.acceptance(iter(frames))
  assert found.verified.sum() == last.result.drafted
  # A draft beyond the limit may be right, and counts in the sampler.
  assert 0 < found.accepted.sum() <= last.result.accepted
  assert (np.diff(found.accepted) <= 0).all() and (found.accepted <= found.verified).all()
