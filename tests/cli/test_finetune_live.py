"""What `finetune` ends with, opened by `transformers`: model, tokenizer and mask token.

Runs where the extra `parity` is installed.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `parity`: torch is not installed")
transformers = pytest.importorskip(
  "transformers", reason="needs the extra `parity`: transformers is not installed"
)

from tests.cli import test_finetune as ours  # noqa: E402


def test_transformers_opens_the_folder(tmp_path):
  model = ours.write_model(tmp_path)
  texts = ours.write_texts(tmp_path / "texts.jsonl")
  folder = tmp_path / "run" / "model"
  assert ours.run(model, texts, "sbd", tmp_path / "run", *ours.SMALL) == 0
  theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
  tokens = torch.arange(24).reshape(2, 12) + 60
  with torch.no_grad():
    found = theirs(tokens).logits.numpy()
  expected = ours.logits_of(folder)
  np.testing.assert_allclose(found[..., :258], expected[..., :258], atol=1e-4)

  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  own = ours.load_tokenizer(str(folder))
  text = "the cat <|mask|> on a mat</s>"
  assert tokenizer.mask_token_id == own.mask_id == 258
  assert tokenizer(text, add_special_tokens=False).input_ids == own.encode(text)
  turns = [{"role": "user", "content": "hi"}]
  shown = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
  assert shown == own.chat_template.render(turns) == ours.CHAT_START
