"""Log-likelihoods of options equal those of `transformers` on the same weights."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `parity`: torch is not installed")
pytest.importorskip(
  "transformers", reason="needs the extra `parity`: transformers is not installed"
)

from sbdjax.evals.scoring.causal import CausalScorer  # noqa: E402
from sbdjax.evals.scoring.requests import TokenRequest, windows  # noqa: E402
from sbdjax.interop import load_pretrained  # noqa: E402
from tests.interop.test_hf_live import gpt2, llama, random_model  # noqa: E402

pytestmark = pytest.mark.long


def theirs(model, request):
  """(nats, greedy) as lm-evaluation-harness computes them: one forward, log_softmax, a sum."""
  tokens = [*request.context, *request.continuation]
  with torch.no_grad():
    logits = model(torch.tensor([tokens[:-1]])).logits[0]
  log_p = torch.log_softmax(logits, -1)[-len(request.continuation) :]
  targets = torch.tensor(request.continuation)
  greedy = bool((log_p.argmax(-1) == targets).all())
  return float(log_p.gather(1, targets[:, None]).sum()), greedy


@pytest.mark.parametrize("family", [llama, gpt2])
def test_options_and_texts(tmp_path, family):
  import transformers

  config = family(random.Random(3))
  cls = {llama: transformers.LlamaForCausalLM, gpt2: transformers.GPT2LMHeadModel}[family]
  model = random_model(config, cls, 3)
  model.save_pretrained(tmp_path)
  opened = load_pretrained(tmp_path)
  rng = np.random.default_rng(0)
  words = lambda n: tuple(rng.integers(0, config.vocab_size, n).tolist())
  examples = words(36)
  groups = [
    [TokenRequest(examples + question, words(n)) for n in (1, 2, 4, 7)]
    for question in map(words, (3, 8, 1, 12, 5, 6, 7, 2, 9))
  ]
  groups += [[window] for window in windows(words(150), [0], 64)]
  scorer = CausalScorer(opened.lm, opened.params)
  for group, scores in zip(groups, scorer(groups), strict=True):
    expected = [theirs(model, request) for request in group]
    np.testing.assert_allclose([s.log_prob for s in scores], [x for x, _ in expected], atol=1e-3)
    assert [s.greedy for s in scores] == [greedy for _, greedy in expected]
