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


def write(path, lines):
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def point(label, decoder, nfe, spelling):
  settings = {"label": label, "decoder": decoder, "samples": 4, "length": 8, "batch_size": 2}
  settings |= {"judge": None, "corpus": "a text"}
  measured = {"nfe": nfe, "spelling": spelling, "entropy": 2.5, "seconds_per_sample": 0.001 * nfe}
  return {"settings": settings, **measured, "device": "cpu"}


def test_the_report_compares_at_equal_quality(tmp_path, capsys):
  mdm = [(4, 0.3), (8, 0.5), (16, 0.6)]
  points = [point("MDM", {"name": "mdm", "steps": n}, n, q) for n, q in mdm]
  for nfe, quality in ((2, 0.2), (4, 0.5), (8, 0.55), (9, 0.7)):  # the outer two: no comparison
    decoder = {"name": "ssmd", "n_inner": 1, "dtau": 1 / nfe}
    points.append(point("SSMD", decoder, nfe, quality) | {"acceptance": 0.75})
  points.append({"settings": {"label": "held-out text"}, "spelling": 0.9, "entropy": 2.7})
  write(tmp_path / "points.jsonl", points)
  line = {"stderr": 0.1, "texts": 3, "samples_per_text": 1, "estimator": "a mean"}
  bits = [("MDM", "mdm", {"steps": n}, n, b) for n, b in ((4, 3.0), (8, 2.5), (16, 2.3))]
  bits.append(("SSMD", "ssmd", {"n_inner": 2, "dtau": 0.5}, 5, 2.4))
  bits.append(("SSMD", "ssmd", {"n_inner": 0, "dtau": 1.0}, 5, 2.45))  # no growing window
  write(
    tmp_path / "likelihood.jsonl",
    [
      line | {"label": label, "decoder": name, "mean_nfe": nfe, "bits_per_character": b} | settings
      for label, name, settings, nfe, b in bits
    ],
  )
  assert script("ssmd_text8/report").main([f"--folder={tmp_path}"]) == 0
  rows = [[c.strip() for c in x.split("|")[1:-1]] for x in (tmp_path / "tables.md").open()]
  compared = [row[2:] for row in rows if row[:2] == ["SSMD", "MDM"]]
  at_spelling = [["0.500", "4.0", "8.0", "2.00"], ["0.550", "8.0", "12.0", "1.50"]]
  # A millisecond an NFE in these lines; no judge.
  assert compared == [*at_spelling, *at_spelling, ["2.400", "5.0", "12.0", "2.40"]]
  assert ["SSMD", "ssmd, N=∞, Δτ=1", "2.450 [2.254, 2.646]"] in [row[:3] for row in rows]
  assert (tmp_path / "figure3.png").stat().st_size > 10_000
  shown = capsys.readouterr().out
  assert "spelling accuracy, ratio: 1.50 to 2.00" in shown and "likelihood, ratio: 2.40" in shown


@pytest.mark.parametrize("has_block", [pytest.param(True, marks=pytest.mark.long), False])
def test_proteins_are_sampled_and_drawn(has_block, tmp_path, monkeypatch):
  module, tokenizer = script("ssmd_protein/sample"), tokenizers.load_tokenizer("esm")
  lm = make_sigma_lm(TINY, HeadConfig()) if has_block else make_lm(TINY)
  defaults = GenerationDefaults((), MASK, attention="full")
  model = Pretrained(lm, models.random_params(lm), tokenizer, defaults)
  monkeypatch.setattr(module, "load_pretrained", lambda path: model)
  letters = "LAGVSERTIDPKQNFYMHWC"
  residues = np.random.default_rng(0).integers(0, 20, (200, 12))
  fasta = "".join(f">P{i}\n{''.join(letters[r] for r in row)}\n" for i, row in enumerate(residues))
  (tmp_path / "some.fasta").write_text(fasta)
  args = ["--checkpoint=a", f"--data.path={tmp_path / 'some.fasta'}", "--samples=3", "--length=6"]
  args += ["--batch_size=2", "--masks=2", "--steps=2,6", "--rules=1:0.5"]
  args += [f"--out={tmp_path / 'points.jsonl'}", f"--picture={tmp_path / 'nfe.png'}"]
  if not has_block:
    with pytest.raises(module.UsageError, match="no causal blocks"):
      module.main(args)
    return
  assert module.main(args) == 0
  records = [json.loads(line) for line in (tmp_path / "points.jsonl").open()]
  held_out, likelihoods = records[0], [r["likelihood"] for r in records if "likelihood" in r]
  assert held_out["bound"] > 0 and "nfe" not in held_out
  assert [[x["decoder"] for x in one] for one in likelihoods] == [["mdm", "mdm"], ["ssmd"]]
  assert all(x["nats_per_residue"] > 0 and x["length"] == 6 for one in likelihoods for x in one)
  headroom = next(r for r in records if "by_masks" in r)
  assert len(headroom["by_masks"]) == 6 and headroom["draft"] > 0
  assert (tmp_path / "tables.md").read_text().startswith("# NFE at equal likelihood")
  points = [r for r in records if "nfe" in r]
  assert [p["settings"]["decoder"]["name"] for p in points] == ["mdm", "mdm", "ssmd"]
  assert points[0]["nfe"] <= 2 and points[2]["trunk_passes"] <= 6
  assert all(0 < p["entropy"] < np.log(6) + 1e-6 and p["bound"] > 0 for p in points)
  assert (tmp_path / "nfe.png").stat().st_size > 10_000
  with pytest.raises(module.UsageError, match="N:DTAU"):
    module.main([*args, "--rules=0.5"])


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
