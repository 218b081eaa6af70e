"""The evaluate verb: the documented loss of stories260K, and what cannot be evaluated."""

import json
import math

import numpy as np
import pytest

from sbdjax import __main__ as entry
from sbdjax import losses
from sbdjax.cli.evaluate_losses import block_size_of, evaluate, losses_of, truncate
from sbdjax.data.corpus import Corpus
from sbdjax.errors import UsageError
from sbdjax.interop import GenerationDefaults, Pretrained
from tests.cli import checkpoints
from tests.helpers import require_shared
from tests.losses import table_model


def run(capsys, *args):
  code = entry.main(["evaluate", *args])
  return code, capsys.readouterr()


@pytest.mark.long
def test_stories260k_has_its_documented_loss(capsys):
  """1.2958 nats a token: each of 60 stories alone, bos + story, at most 512 positions."""
  path = require_shared("data", "tinystories", "tinystories_train_2MiB.txt.xz")
  code, printed = run(
    capsys, "--checkpoint=stories260K", "--data.source=text", f"--data.path={path}", "--json",
    "--data.split_sizes=(60,0,0)", "--split=train", "--truncate",
  )  # fmt: skip
  found = json.loads(printed.out)
  assert code == 0 and found["ntp_loss"] == pytest.approx(1.2958, abs=5e-4)
  assert found["ntp_perplexity"] == pytest.approx(math.exp(found["ntp_loss"]))
  assert "masked_loss" not in found and "60 documents" in found["corpus"]


@pytest.mark.long
def test_a_model_with_mask_token_has_both_losses(tmp_path, capsys):
  """An untrained mask token leaves the next-token loss where it was."""
  both = checkpoints.write_stories_with_mask(tmp_path / "stories.safetensors")
  (tmp_path / "some.txt").write_text("Once upon a time there was a dog.<|endoftext|>" * 20)
  data = ["--data.source=text", f"--data.path={tmp_path}/some.txt", "--data.seq_len=16", "--json"]
  found = {}
  for name in ("stories260K", both):
    code, printed = run(capsys, f"--checkpoint={name}", *data)
    assert code == 0, printed.err
    found[name] = json.loads(printed.out)
  assert found[both]["ntp_loss"] == pytest.approx(found["stories260K"]["ntp_loss"], abs=1e-4)
  assert found[both]["masked_loss"] > found[both]["ntp_loss"]
  again = json.loads(run(capsys, f"--checkpoint={both}", *data)[1].out)
  assert again["masked_loss"] == found[both]["masked_loss"]


def test_the_loss_is_that_of_the_kind_of_model():
  lm = table_model.make_lm()
  opened = lambda **how: Pretrained(
    lm, table_model.PARAMS, None, GenerationDefaults((), lm.config.mask_id, **how)
  )
  assert list(losses_of(opened(), 5)) == ["sbd"]
  assert list(losses_of(opened(attention="full"), 5)) == ["mdm"]
  blocks = opened(attention="block_causal", block_size=3)
  assert block_size_of(blocks, None) == 3
  assert losses_of(blocks, 3) == {"block_diffusion": losses.BlockDiffusionLoss(block_size=3)}
  with pytest.raises(UsageError, match="trained with blocks of 3"):
    block_size_of(blocks, 5)
  assert block_size_of(opened(), None) == 16 and block_size_of(opened(), 5) == 5
  assert block_size_of(opened(attention="full"), None) is None
  with pytest.raises(UsageError, match="which this model has not"):
    block_size_of(opened(attention="full"), 5)
  found = evaluate(blocks, [table_model.batch()], 5, 0)
  assert found["bits"] == pytest.approx(found["nelbo"] / math.log(2)) and "ntp_loss" not in found
  for attention in ("full", "block_causal"):
    with pytest.raises(UsageError, match="one position before it"):
      losses_of(opened(attention=attention, shifted=True), 5)


def test_truncate_keeps_the_beginning_of_each_document():
  corpus = Corpus(
    np.arange(10),
    np.array([2, 5, 3]),
    prompt_lengths=np.array([1, 4, 0]),
    targets=np.arange(10) % 2 > 0,
  )
  cut = truncate(corpus, 3)
  np.testing.assert_array_equal(cut.targets, cut.tokens % 2 > 0)
  np.testing.assert_array_equal(cut.tokens, [0, 1, 2, 3, 4, 7, 8, 9])
  np.testing.assert_array_equal(cut.lengths, [2, 3, 3])
  np.testing.assert_array_equal(cut.prompt_lengths, [1, 4, 0])


@pytest.mark.parametrize(
  ("args", "code", "message"),
  [
    (["--data.sorce=text"], 2, "unknown field data.sorce (did you mean 'source'?)"),
    (["--decoder.gamma=1"], 2, "unknown argument '--decoder.gamma=1'"),
    (["--data.source=text"], 2, "set data.path"),
    (["--data.source=text", "--data.path=nowhere.txt"], 1, "nowhere.txt"),
    (["--data.source=text", "--data.path=EMPTY"], 1, "empty"),
    (["--data.seq_len=1024"], 2, "exceeds the model's context of 512"),
    (["--data.tokenizer=text9"], 2, "did you mean 'text8'"),
    (["--data.tokenizer=GPT2"], 1, "has 512 embedding rows but tokenizer"),
    (["--split=valid"], 2, "invalid choice: 'valid'"),
    (["--checkpoint=stories260K-sbd", "--block_size=600"], 2, "no block of that size fits in rows"),
    (["--block_size=0"], 2, "--block_size=0: give 1 or more"),
    (["--batch_size=0"], 2, "batch_size=0"),
  ],
)
def test_bad_input_is_one_line(tmp_path, capsys, args, code, message):
  (tmp_path / "empty.txt").write_text("")
  args = [a.replace("EMPTY", str(tmp_path / "empty.txt")) for a in args]
  if "GPT2" in args[0]:
    args = [args[0].replace("GPT2", str(require_shared("data", "gpt2_bpe")))]
  found, printed = run(capsys, "--checkpoint=stories260K", *args)
  assert message in printed.err and found == code
  assert printed.err.count("\n") == 1 and printed.out == ""
