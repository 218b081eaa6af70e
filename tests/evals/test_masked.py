"""The bound of masked models against a float64 network that runs one block at a time, every set of masks."""

import itertools

import jax
import numpy as np
import pytest

import sbdjax
from sbdjax import decode
from sbdjax.decode.base import Limits
from sbdjax.decode.diffusion.blocks import Blocks
from sbdjax.decode.diffusion.network import Forwarding
from sbdjax.decode.generate import Decoder
from sbdjax.errors import UsageError
from sbdjax.evals.scoring import masked
from sbdjax.interop.pretrained import Pretrained
from sbdjax.interop.settings import GenerationDefaults
from sbdjax.nn.sigma import HeadConfig
from sbdjax.sigma_lm import make_sigma_lm
from tests import models
from tests.jit import quick_jit
from tests.reference import network, visibility

MASK, K = 12, 3
LM = models.lm_of(mask_id=MASK)
PARAMS = models.random_params(LM, embedding_scale=2.0)
TEXT = [3, 7, 1, 7, 0, 5, 2, 9]  # the last block has a place more
BLOCKS = [range(0, 3), range(3, 6), range(6, 8)]


def log_probs(tokens, block_size, shifted):
  """float64 [L, V]: log p of every token at every place, as the decoder sees these tokens."""
  size = len(tokens)
  visible = np.ones((size, size), bool)
  if block_size:
    visible = visibility.block_causal(size, block_size)
  logits = network.forward(LM.config, PARAMS, np.array(tokens), np.arange(size), visible)
  logits[:, MASK] = -np.inf
  if shifted:
    logits = logits[[max(i - 1, 0) for i in range(size)]]
  return network.log_softmax(logits)


def expected(given, block_size, shifted):
  """The bound in full: the mean over the number of masks of a block, and over their places."""
  total = 0.0
  for block in BLOCKS if block_size else [range(len(TEXT))]:
    free = [i for i in block if i not in given]
    for n in range(1, len(free) + 1):
      places = list(itertools.combinations(free, n))
      for hidden in places:
        tokens = [MASK if i in hidden else t for i, t in enumerate(TEXT)][: block[-1] + 1]
        if block_size:
          tokens += [MASK] * (-len(tokens) % block_size)
        log_p = log_probs(tokens, block_size, shifted)
        total += sum(log_p[i, TEXT[i]] for i in hidden) / n / len(places)
  return total


def found(given, block_size, shifted, samples):
  """The mean of samples, and its standard error."""
  bound = masked.Bound(LM, block_size, shifted)
  tokens = np.zeros((1, bound.width(len(TEXT)) + (block_size or 2)), np.int32)  # and padding
  tokens[0, : len(TEXT)] = TEXT
  known = np.isin(np.arange(tokens.shape[1]), given)
  how = (jax.random.key(0)[None], samples, known, np.array([len(TEXT)]))
  values = quick_jit(lambda params: bound(params, tokens, *how))(PARAMS)[0]
  return float(np.mean(values)), float(np.std(values)) / samples**0.5


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("block_size", "given"), [(None, ()), (K, ()), (K, (0, 1, 2, 3))])
def test_bound_is_the_mean_over_all_masks(block_size, given, shifted):
  value, error = found(given, block_size, shifted, 2000)
  assert value == pytest.approx(expected(given, block_size, shifted), abs=5 * error + 1e-3)
  assert error < 0.02 * abs(value)


@pytest.mark.parametrize("shifted", [False, True])
def test_blocks_of_one_are_exact(shifted):
  """One token a block: nothing is drawn, and the bound is the likelihood of decoding token by token."""
  bound = masked.Bound(LM, 1, shifted)
  keys = jax.random.split(jax.random.key(0), 2)
  (value, again) = bound(PARAMS, np.array([TEXT, TEXT]), keys)[:, 0]
  exact = sum(log_probs([*TEXT[:i], MASK], 1, shifted)[i, token] for i, token in enumerate(TEXT))
  assert value == pytest.approx(exact, rel=1e-5) and value == again


@pytest.mark.long
def test_the_decoder_draws_from_what_is_scored():
  """Greedy static decoding, one token per forward, picks the likeliest token of the same predictions."""
  prompt, text = TEXT[:4], list(TEXT[:4])
  method = decode.Static(K, blocks=Blocks(K, "block_causal"), forwarding=Forwarding(shifted=True))
  decoder = Decoder(LM, Limits(5))
  (result,) = decoder.generate(method, PARAMS, [prompt], jax.random.key(0))
  for first in (3, 6):
    block = (text[first:] + [MASK] * K)[:K]
    while MASK in block:
      log_p = log_probs(text[:first] + block, K, True)[first:]
      at = max((i for i in range(K) if block[i] == MASK), key=lambda i: log_p[i].max())
      block[at] = int(log_p[at].argmax())
    text[first:] = block
  assert list(result.tokens) == text[4:9]


def test_score_gives_the_first_token_of_block_diffusion():
  how = GenerationDefaults((), MASK, attention="block_causal", block_size=1)
  model = Pretrained(LM, PARAMS, None, how)
  (found,) = sbdjax.score(model, [TEXT], samples=3)
  exact = [log_probs([*TEXT[:i], MASK], 1, False)[i, token] for i, token in enumerate(TEXT)]
  assert found.nats == pytest.approx(-sum(exact[1:]), rel=1e-5)
  assert (found.tokens, found.estimator) == (7, "any-order bound within blocks of 1")
  for text, message in (([], "empty"), ([3], "fewer than two tokens")):
    with pytest.raises(UsageError, match=message):
      sbdjax.score(model, [text])


def test_what_has_no_bound():
  with pytest.raises(UsageError, match="mask token"):
    masked.Bound(models.lm_of())
  with pytest.raises(UsageError, match="block_size=0"):
    masked.Bound(LM, 0)
  with pytest.raises(UsageError, match="exact likelihood"):
    masked.bound_of(LM, "causal", None, False)
  with pytest.raises(UsageError, match="does not say the size"):
    masked.bound_of(LM, "block_causal", None, False)
  sigma = make_sigma_lm(models.config(mask_id=MASK, num_layers=1), HeadConfig())
  assert masked.bound_of(sigma, "causal", None, False) == masked.Bound(sigma)
