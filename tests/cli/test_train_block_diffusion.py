"""Training with the block-diffusion loss: what is evaluated, and what a decoder is told of it."""

import json

import numpy as np
import pytest

from sbdjax import __main__ as entry
from sbdjax.errors import CheckpointError
from sbdjax.interop import load_pretrained

CONFIG = """
from ml_collections import ConfigDict

def get_config():
  return ConfigDict(dict(
    model=dict(
      vocab_size=28, mask_id=27, num_layers=1, d_model=8, num_heads=2, num_kv_heads=1, d_ff=8,
      max_seq_len=16,
    ),
    data=dict(source="text", path="TEXT", tokenizer="text8", add_bos=False, seq_len=16),
    loss=dict(name="block_diffusion", block_size=5, noise_min=0.3, noise_max=0.8, weighting="none"),
    optim=dict(learning_rate=0.01, warmup_steps=1),
    train=dict(steps=2, batch_size=4, log_every=1, eval_every=2, eval_batches=2),
  ))
"""


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  folder = tmp_path_factory.mktemp("block_diffusion")
  draws = np.random.default_rng(0).integers(0, 26, 2000)
  (folder / "text.txt").write_text("".join(chr(ord("a") + i) for i in draws))
  (folder / "config.py").write_text(CONFIG.replace("TEXT", str(folder / "text.txt")))
  flags = [f"--config={folder / 'config.py'}", f"--workdir={folder / 'run'}"]
  assert entry.main(["train", *flags]) == 0
  return folder / "run"


@pytest.mark.long
def test_evaluations_report_the_bound_whatever_noise_is_trained_on(workdir):
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  assert all("train/masked_loss" in line and "train/nelbo" not in line for line in lines)
  last = lines[-1]
  assert last["eval/loss"] == pytest.approx(last["eval/nelbo"])
  # Nothing is learnt in two steps: 27 letters, each as likely as the other.
  assert last["eval/nelbo"] == pytest.approx(np.log(27), rel=0.25)


def test_the_checkpoint_says_how_it_is_decoded(workdir):
  generation = load_pretrained(workdir).generation
  assert (generation.attention, generation.block_size) == ("block_causal", 5)
  assert not generation.shifted and generation.mask_id == 27


def test_a_record_of_decoding_that_is_not_understood_is_refused(workdir):
  path = workdir / "config.json"
  text = path.read_text()
  try:
    path.write_text(text.replace('"shifted"', '"sifted"'))
    with pytest.raises(CheckpointError, match="sifted"):
      load_pretrained(workdir)
  finally:
    path.write_text(text)
