"""The scripts of the self-speculative experiments: what they measure, tabulate and draw."""

import importlib.util
import json
import pathlib

import numpy as np
import pytest

from sbdjax.data import tokenizers
from sbdjax.interop.pretrained import Pretrained
from sbdjax.interop.settings import GenerationDefaults
from sbdjax.lm import make_lm
from sbdjax.nn.sigma import HeadConfig
from sbdjax.sigma_lm import make_sigma_lm
from tests import models

ROOT = pathlib.Path(__file__).parents[2] / "experiments"
MASK = 32
TINY = models.config(
  vocab_size=33, mask_id=MASK, num_layers=1, d_model=8, num_heads=2, num_kv_heads=2, d_ff=8
)


def script(name):
  spec = importlib.util.spec_from_file_location(name.replace("/", "_"), ROOT / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture
def proteins(tmp_path):
  letters = "LAGVSERTIDPKQNFYMHWC"
  residues = np.random.default_rng(0).integers(0, 20, (200, 12))
  fasta = "".join(f">P{i}\n{''.join(letters[r] for r in row)}\n" for i, row in enumerate(residues))
  (tmp_path / "some.fasta").write_text(fasta)
  return tmp_path / "some.fasta"


def model_of(lm):
  defaults = GenerationDefaults((), MASK, attention="full")
  tokenizer = tokenizers.load_tokenizer("esm")
  return Pretrained(lm, models.random_params(lm), tokenizer, defaults)


def read(path):
  return [json.loads(line) for line in path.open()]


def test_a_block_is_needed_for_the_samples_of_proteins(proteins, monkeypatch):
  module = script("ssmd_protein/sample")
  monkeypatch.setattr(module, "load_pretrained", lambda path: model_of(make_lm(TINY)))
  with pytest.raises(module.UsageError, match="no causal blocks"):
    module.main(["--checkpoint=a", f"--data.path={proteins}", "--out=points.jsonl"])


def test_proteins_are_sampled(proteins, tmp_path, monkeypatch):
  module, model = script("ssmd_protein/sample"), model_of(make_sigma_lm(TINY, HeadConfig()))
  monkeypatch.setattr(module, "load_pretrained", lambda path: model)
  args = [
    "--checkpoint=a",
    f"--data.path={proteins}",
    "--samples=3",
    "--length=6",
    "--batch_size=2",
  ]
  args += ["--masks=2", "--steps=2,6", "--rules=1:0.5", f"--out={tmp_path / 'points.jsonl'}"]
  assert module.main(args) == 0
  natural, headroom, *points = read(tmp_path / "points.jsonl")
  # Ten proteins of twelve residues are held out, each has two parts.
  assert natural["each"]["source"] == [0, 0, 1] and "nfe" not in natural
  assert len(headroom["by_masks"]) == 6 and headroom["draft"] > 0
  found = [(p["settings"]["label"], p["settings"]["decoder"]["name"]) for p in points]
  assert found == [
    *[("trunk alone, cosine steps", "mdm")] * 2,
    ("with the block", "ssmd"),
  ]
  assert max(points[0]["each"]["nfe"]) <= 2 and points[-1]["trunk_passes"] <= 6
  for each in (x["each"] for x in [natural, *points]):
    assert all(0 <= h < np.log(6) + 1e-4 for h in each["entropy"])
    assert each["bound_tokens"] == [6] * 3 and min(each["bound_nll"]) > 0
  with pytest.raises(module.UsageError, match="N:DTAU"):
    module.main([*args, "--rules=0.5"])


def test_the_likelihood_of_parts_of_proteins(proteins, tmp_path, monkeypatch):
  module, model = script("ssmd_text8/likelihood"), model_of(make_sigma_lm(TINY, HeadConfig()))
  monkeypatch.setattr(module, "load_pretrained", lambda path: model)
  args = ["--data.source=fasta", "--data.tokenizer=esm", "--data.packing=crop", "--texts=3"]
  args += [f"--data.path={proteins}", "--length=6", "--rules=1:0.5", "--unit=nats_per_residue"]
  out = tmp_path / "likelihood.jsonl"
  assert module.main([*args, f"--out={out}", "--together", "--steps=2,6", "block=a"]) == 0
  with pytest.raises(SystemExit):  # their lines could not be told apart
    module.main([*args, f"--out={out}", "--together", "one=a", "other=a"])
  lines = read(out)
  assert [x["label"] for x in lines[1:6]] == [
    *["trunk alone, cosine steps"] * 2,
    *["trunk alone, linear steps"] * 2,
    "block",
  ]
  assert {x["decoder"] for x in lines[5:]} == {"ssmd"} and lines[0]["label"] == "block"
  for x in lines:
    # Marks are given: they cost nothing and are not counted.
    assert x["length"] == 6 and x["texts"] == 3 and x["each"]["source"] == [0, 0, 1]
    mean = -np.sum(x["each"]["log_prob"]) / 18
    assert x["nats_per_residue"] == pytest.approx(mean, abs=1e-4) and mean > 0


def test_the_drawn_masks_are_those_of_the_papers_example():
  """Its Figure 5: in the order of the generation "a" sees guess and itself, "like" all but Speculation."""
  masks = script("ssmd_text8/masks")
  full, causal, ordered = (masks.seen_by_place(*panel) for panel in masks.PANELS.values())
  sees = lambda seen, word: {
    key for key, on in zip(masks.WORDS, seen[masks.WORDS.index(word)], strict=True) if on
  }
  assert full.all()
  assert sees(causal, "like") == {"Speculation", "is", "like"}
  assert sees(ordered, "a") == {"a", "guess"}
  assert sees(ordered, "like") == {"guess", "a", "is", "hazarding", "like"}
