"""Training the masked-diffusion losses from a config: resuming, opening, a frozen trunk."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from sbdjax import __main__ as entry
from sbdjax.errors import UsageError
from sbdjax.interop import load_pretrained, native, save_pretrained
from sbdjax.nn.sigma import HeadConfig
from sbdjax.sigma_lm import SigmaLM, make_sigma_lm
from sbdjax.train import checkpoints
from sbdjax.train.state import leaf_names
from tests import models

CONFIG = """
from ml_collections import ConfigDict

def get_config(variant="ssmd"):
  config = ConfigDict(dict(
    model=dict(
      vocab_size=28, mask_id=27, num_layers=1, d_model=8, num_heads=2, num_kv_heads=1, d_ff=8,
      max_seq_len=16,
    ),
    data=dict(source="text", path="TEXT", tokenizer="text8", add_bos=False, seq_len=12),
    loss=dict(name="ssmd", schedule="cosine"),
    optim=dict(learning_rate=0.01, schedule="constant"),
    train=dict(steps=4, batch_size=4, log_every=1, eval_every=2, eval_batches=2, ema_decay=0.5),
  ))
  if variant == "mdm":
    config.loss.name = "mdm"
  if variant == "sdtt":
    config.model = ConfigDict()
    config.init = ConfigDict(dict(checkpoint="MDM"))
    config.loss = ConfigDict(dict(name="sdtt", steps=4))
  if variant == "frozen":
    config.model = ConfigDict()
    config.init = ConfigDict(dict(checkpoint="MDM"))
    config.head = ConfigDict(dict(num_layers=2))
    config.optim.frozen = "^trunk/"
  return config
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("ssmd")
  draws = np.random.default_rng(0).integers(0, 26, 2000)
  (folder / "text.txt").write_text("".join(chr(ord("a") + i) for i in draws))
  text = CONFIG.replace("TEXT", str(folder / "text.txt")).replace("MDM", str(folder / "mdm"))
  (folder / "config.py").write_text(text)
  return folder


def train(folder, name, variant, *flags):
  config = f"--config={folder / 'config.py'}:{variant}"
  assert entry.main(["train", config, f"--workdir={folder / name}", *flags]) == 0
  return folder / name


@pytest.fixture(scope="module")
def whole(folder):
  return train(folder, "whole", "ssmd")


@pytest.fixture(scope="module")
def mdm(folder):
  return train(folder, "mdm", "mdm")


@pytest.mark.long
def test_a_run_in_two_parts_ends_with_the_same_bits(folder, whole):
  """The schedule of the learning rate is constant, so the first part is the whole one's."""
  train(folder, "parts", "ssmd", "--config.train.steps=2")
  train(folder, "parts", "ssmd")
  one, two = (leaf_names(checkpoints.load_params(folder / n)) for n in ("whole", "parts"))
  for name, leaf in one.items():
    np.testing.assert_array_equal(two[name], leaf, err_msg=name)
  begin = leaf_names(checkpoints.load_params(folder / "parts", 2))
  assert all((begin[name] != leaf).any() for name, leaf in one.items())


@pytest.mark.long
def test_evaluations_report_the_bound_whatever_is_trained_on(whole):
  last = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])
  assert last["train/loss"] != pytest.approx(last["train/draft_nelbo"] + last["train/target_nelbo"])
  both = last["eval/draft_nelbo"] + last["eval/target_nelbo"]
  assert last["eval/loss"] == pytest.approx(both)
  # Nothing is learnt in four steps: 27 letters, each as likely as the other.
  assert last["eval/draft_nelbo"] == pytest.approx(np.log(27), rel=0.25)


@pytest.mark.long
def test_a_checkpoint_opens_as_the_model_it_is(whole, mdm):
  model = load_pretrained(whole)
  assert isinstance(model.lm, SigmaLM) and model.lm.head == HeadConfig()
  assert model.generation.attention == "full" and model.generation.mask_id == 27
  assert not isinstance(load_pretrained(mdm).lm, SigmaLM)


@pytest.mark.long
def test_a_frozen_trunk_stays_as_it_was_opened(folder, mdm):
  workdir = train(
    folder, "frozen", "frozen", "--config.train.checkpoint_every=1", "--config.train.eval_every=0"
  )
  trunk = leaf_names(load_pretrained(mdm).params)
  opened = load_pretrained(workdir)
  assert opened.lm.head.num_layers == 2
  for name, leaf in leaf_names(opened.params["trunk"]).items():
    np.testing.assert_array_equal(leaf, trunk[name], err_msg=name)
  before = checkpoints.load_params(workdir, 3)["head"]
  moved = jax.tree.map(lambda a, b: np.any(a != b), opened.params["head"], before)
  assert all(jax.tree.leaves(moved))


def test_a_file_holds_the_whole_model_and_hugging_face_has_none(tmp_path):
  lm = make_sigma_lm(models.config(vocab_size=28, mask_id=27), HeadConfig(num_layers=2))
  params = jax.device_get(models.random_params(lm))
  settings = dict(tokenizer="text8", eos_ids=[], head=dataclasses.asdict(lm.head))
  native.write(tmp_path / "m.safetensors", lm.config, params, settings)
  opened = load_pretrained(tmp_path / "m.safetensors")
  assert isinstance(opened.lm, SigmaLM) and opened.lm.head == lm.head
  jax.tree.map(np.testing.assert_array_equal, opened.params, params)
  with pytest.raises(UsageError, match="causal blocks"):
    save_pretrained(tmp_path / "hf", opened)


@pytest.mark.long
def test_the_trunk_alone_can_be_trained_on(folder, whole):
  flags = [
    f"--config.init.checkpoint={whole}",
    "--config.train.steps=1",
    "--config.optim.learning_rate=1e-9",
  ]
  workdir = train(folder, "trunk", "mdm", *flags, "--config.train.eval_every=0")
  trunk = leaf_names(load_pretrained(whole).params["trunk"])
  for name, leaf in leaf_names(load_pretrained(workdir).params).items():
    np.testing.assert_allclose(leaf, trunk[name], atol=1e-6, err_msg=name)


def test_only_the_self_speculative_loss_has_causal_blocks(folder, capsys):
  flags = [f"--config={folder / 'config.py'}:mdm", f"--workdir={folder / 'no'}"]
  assert entry.main(["train", *flags, "--config.head.num_layers=2"]) == 2
  assert "unknown field config.head.num_layers" in capsys.readouterr().err


@pytest.mark.long
def test_a_model_learns_from_the_one_it_starts_from(folder, mdm):
  """The teacher is kept with the run, so that one in two parts ends with the same bits."""
  once = train(folder, "sdtt", "sdtt")
  train(folder, "sdtt_parts", "sdtt", "--config.train.steps=2")
  twice = train(folder, "sdtt_parts", "sdtt")
  one, two = (leaf_names(checkpoints.load_params(path)) for path in (once, twice))
  for name, leaf in one.items():
    np.testing.assert_array_equal(two[name], leaf, err_msg=name)
  start = leaf_names(checkpoints.load_params(mdm))
  assert any((one[name] != leaf).any() for name, leaf in start.items())
  logged = [json.loads(line) for line in (once / "metrics.jsonl").read_text().splitlines()]
  assert {"train/kl", "train/agreement"} <= set(logged[0]) and any(
    "eval/nelbo" in x for x in logged
  )
  assert load_pretrained(once).generation.attention == "full"


def test_a_teacher_that_drops_channels_is_refused(folder, capsys):
  teacher, lm = folder / "teacher.safetensors", models.lm_of(vocab_size=28, mask_id=27)
  settings = dict(tokenizer="text8", eos_ids=[])
  native.write(teacher, lm.config, jax.device_get(models.random_params(lm)), settings)
  config, workdir = f"--config={folder / 'config.py'}:sdtt", f"--workdir={folder / 'dropped'}"
  flags = [f"--config.init.checkpoint={teacher}", "--config.model.dropout=0.1"]
  assert entry.main(["train", config, workdir, *flags]) == 2
  assert "whose channels must not be dropped: set model.dropout=0" in capsys.readouterr().err


def test_distillation_from_nothing_is_refused(folder, capsys):
  flags = ["--config.init.checkpoint=", "--config.model.vocab_size=28"]
  config = f"--config={folder / 'config.py'}:sdtt"
  assert entry.main(["train", config, f"--workdir={folder / 'none'}", *flags]) == 2
  assert "loss.name=sdtt learns from the model that training starts from" in capsys.readouterr().err
