"""GGUF files against `transformers`: its own models converted, and SmolLM2 opened by both.

Runs where the extra `parity` is installed; SmolLM2 also needs `make smollm2`.
"""

import json
import lzma
import random
import re

import jax
import numpy as np
import pytest
from tokenizers import pre_tokenizers

torch = pytest.importorskip("torch", reason="needs the extra `parity`: torch is not installed")
transformers = pytest.importorskip(
  "transformers", reason="needs the extra `parity`: transformers is not installed"
)

from sbdjax import masks  # noqa: E402
from sbdjax.decode.base import Limits  # noqa: E402
from sbdjax.decode.causal.ar import AR  # noqa: E402
from sbdjax.decode.generate import Decoder  # noqa: E402
from sbdjax.interop import load_pretrained, smollm2  # noqa: E402
from tests import models  # noqa: E402
from tests.helpers import require_shared  # noqa: E402
from tests.interop import gguf_files, test_hf_live  # noqa: E402

FAMILIES = ("llama", "qwen2", "qwen3", "gpt2")
LINES = 10_000
CHATS = (
  [{"role": "user", "content": "What is the capital of France?"}],
  [{"role": "user", "content": "Write one sentence about the sea."}],
  [
    {"role": "system", "content": "You answer with one word."},
    {"role": "user", "content": "Which colour is the sky?"},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "And grass?"},
  ],
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(tmp_path, family, seed, record_property):
  """Random models of transformers, written as llama.cpp writes them."""
  rng = random.Random(f"gguf{family}{seed}")
  config = test_hf_live.CAUSAL[family](rng)
  if family == "gpt2":
    config.activation_function = "gelu_new"  # the only one that llama.cpp has for GPT-2
  theirs = test_hf_live.random_model(config, transformers.AutoModelForCausalLM.from_config, seed)
  theirs.save_pretrained(tmp_path / "hf")
  written = json.loads((tmp_path / "hf" / "config.json").read_text())
  rotary = written.pop("rope_parameters", None) or {}
  scaled = rotary.get("rope_type", "default") != "default"
  written |= {"rope_theta": rotary.get("rope_theta"), "rope_scaling": rotary if scaled else None}
  (tmp_path / "hf" / "config.json").write_text(json.dumps(written))
  ours = load_pretrained(gguf_files.convert(tmp_path / "hf", tmp_path / "m.gguf"))
  tokens = models.tokens(2, test_hf_live.LENGTH, ours.lm.config.vocab_size, seed)
  with torch.no_grad():
    expected = theirs(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
  worst = float(np.abs(test_hf_live.logits_of(ours, tokens, masks.Causal()) - expected).max())
  record_property("largest difference", worst)
  assert worst <= test_hf_live.TOLERANCE
  assert expected.std() > 0.3, "logits so alike that anything would pass"


@pytest.fixture(scope="module")
def smol():
  """(model of transformers, its tokenizer, ours), of the same file."""
  file = smollm2.path()
  if not file.is_file():
    pytest.skip("SmolLM2-135M is not installed: run `make smollm2`")
  where = dict(pretrained_model_name_or_path=file.parent, gguf_file=file.name)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
  return theirs, tokenizer, load_pretrained(smollm2.NAME)


def prompts_of(tokenizer):
  return [tokenizer.encode_chat(chat) for chat in CHATS]


@pytest.mark.long
def test_smollm2_logits(smol, record_property):
  theirs, _, ours = smol
  worst = 0.0
  for prompt in prompts_of(ours.tokenizer):
    tokens = np.array([prompt], np.int32)
    with torch.no_grad():
      expected = theirs(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
    found = test_hf_live.logits_of(ours, tokens, masks.Causal())
    worst = max(worst, float(np.abs(found - expected).max()))
    assert expected.std() > 1
  record_property("largest difference", worst)
  assert worst < 2e-3, worst


@pytest.mark.long
def test_smollm2_answers_token_for_token(smol):
  theirs, _, ours = smol
  decoder = Decoder(ours.lm, Limits(40, eos_ids=ours.generation.eos_ids))
  for prompt in prompts_of(ours.tokenizer):
    (result,) = decoder.generate(AR(), ours.params, [prompt], jax.random.key(0))
    inputs = torch.tensor([prompt])
    with torch.no_grad():
      expected = theirs.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=2,
        pad_token_id=2,
        repetition_penalty=1.0,
      )[0, len(prompt) :].tolist()
    assert result.text_tokens == expected


@pytest.mark.long
def test_smollm2_tokenizer(smol):
  """transformers does not know the cut called "smollm" (digits by themselves) and takes GPT-2's,
  which differs where two white spaces stand before a digit. With the cut that SmolLM2's own
  tokenizer.json holds, all lines are the same."""
  _, theirs, ours = smol
  path = require_shared("data", "webtext", "webtext.test.jsonl.xz")
  with lzma.open(path, "rt", encoding="utf-8") as file:
    texts = [json.loads(line)["text"] for line in file]
  lines = [line for text in texts for line in text.splitlines(keepends=True)][:LINES]
  assert len(lines) == LINES
  found = [ids.tolist() for ids in ours.tokenizer.encode_batch(lines)]
  pairs = list(zip(lines, found, strict=True))
  plain = [(line, ids) for line, ids in pairs if not re.search(r"\s\s\d", line)]
  assert len(plain) > 0.9 * LINES
  for line, ids in plain:
    assert ids == theirs.encode(line, add_special_tokens=False), line
  theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
  )
  for line, ids in pairs:
    assert ids == theirs.encode(line, add_special_tokens=False), line
    assert ours.tokenizer.decode(ids) == line
  for chat in CHATS:
    text = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert ours.tokenizer.chat_template.render(chat) == text
    assert ours.tokenizer.encode_chat(chat) == theirs.encode(text, add_special_tokens=False)
