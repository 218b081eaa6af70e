"""Methods that fill in any order on the command line: holes, empty prompts, what is printed."""

import json
import math

import pytest

from sbdjax import __main__ as entry
from sbdjax.cli import evaluate_losses, generate
from sbdjax.data.text8_tokenizer import ALPHABET, Text8Tokenizer
from sbdjax.interop.pretrained import Pretrained
from sbdjax.interop.settings import GenerationDefaults
from sbdjax.nn.sigma import HeadConfig
from sbdjax.sigma_lm import make_sigma_lm
from tests import models

MASK = 27
SIGMA = make_sigma_lm(
  models.config(
    vocab_size=28, mask_id=MASK, num_layers=1, d_model=8, num_heads=2, num_kv_heads=2, d_ff=8
  ),
  HeadConfig(),
)
PARAMS = models.random_params(SIGMA)


@pytest.fixture
def checkpoint(monkeypatch):
  """`--checkpoint=tiny` opens the model above."""
  model = Pretrained(
    SIGMA, PARAMS, Text8Tokenizer(mask_id=MASK), GenerationDefaults((), MASK, attention="full")
  )
  monkeypatch.setattr(generate, "load_pretrained", lambda path, **kwargs: model)


def run(capsys, *args):
  code = entry.main(["generate", "--checkpoint=tiny", *args, "--json"])
  captured = capsys.readouterr()
  return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_a_prompt_with_holes_and_an_empty_one(checkpoint, capsys):
  code, lines, err = run(
    capsys, "--prompt=a __ cat", "--prompt=", "--hole=_", "--decoder.name=ssmd",
    "--decoder.max_tokens=4", "--decoder.temperature=1", "--decoder.dtau=0.4",
    "--decoder.n_inner=2",
  )  # fmt: skip
  assert code == 0 and not err
  assert lines[0]["prompt_text"][:2] == "a " and lines[0]["prompt_text"][4:] == " cat"
  assert set(lines[0]["prompt_text"][2:4]) <= set(ALPHABET) and lines[1]["prompt_text"] == ""
  for line in lines:
    assert len(line["text"]) == 4 == line["valid_tokens"] and MASK not in line["tokens"]
    # One bidirectional and one causal block.
    assert line["nfe"] == (line["trunk_passes"] + line["causal_passes"]) / 2
    assert line["trunk_passes"] <= line["causal_passes"] <= 2 * line["trunk_passes"]
    assert line["drafted"] - line["accepted"] >= line["causal_passes"] - line["trunk_passes"]
    assert line["tpf"] == 4 / line["nfe"]
    assert line["decoder"]["window"] == "cosine" and line["decoder"]["dtau"] == 0.4


def test_nothing_but_the_holes(checkpoint, capsys):
  holes = "--prompt_tokens=[[1,27,3],[4,5,6]]"
  code, lines, _ = run(capsys, holes, "--decoder.name=mdm", "--decoder.max_tokens=0",
                       "--decoder.temperature=1", "--decoder.unmask=first_hitting")  # fmt: skip
  assert code == 0
  filled, given = lines
  assert filled["tokens"] == [] and filled["nfe"] == 1 and filled["prompt_tokens"][::2] == [1, 3]
  assert filled["prompt_tokens"][1] < MASK and "trunk_passes" not in filled
  assert given["prompt_tokens"] == [4, 5, 6] and given["nfe"] == 0 and given["tpf"] == 0


@pytest.mark.parametrize(
  "args, message",
  [
    (["--prompt=a", "--decoder.name=ar"], "choose one of mdm, ssmd"),
    (["--prompt=a", "--decoder.name=mdm", "--decoder.unmask=ancestrl"], "did you mean 'ancestral'"),
    (["--prompt=a", "--decoder.name=mdm", "--decoder.dtau=0.1"], "decoder.dtau has no effect"),
    (["--prompt=a", "--decoder.name=ssmd", "--decoder.dtau=2"], "dtau=2.0 is a share"),
    (["--prompt=a", "--decoder.max_tokens=0"], "decoder.max_tokens=0 must be at least 1"),
    (["--prompt=a", "--decoder.name=ssmd", "--decoder.n_inner=-1"], "n_inner=-1 must not be neg"),
  ],
)
def test_errors_are_one_line(checkpoint, capsys, args, message):
  code, lines, err = run(capsys, *args)
  assert code == 2 and not lines and message in err and err.count("\n") == 1


@pytest.mark.long
def test_evaluate_reports_the_bound_of_the_drafts(checkpoint, monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(evaluate_losses, "load_pretrained", generate.load_pretrained)
  (tmp_path / "text").write_text("the cat sat on the mat " * 40)
  code = entry.main([
    "evaluate", "--checkpoint=tiny", "--data.source=text8", f"--data.path={tmp_path / 'text'}",
    "--data.seq_len=8", "--data.packing=concat", "--json", "--split=train",
  ])  # fmt: skip
  found = json.loads(capsys.readouterr().out)
  assert code == 0 and found["draft_bits"] == found["draft_nelbo"] / math.log(2) > 1
  assert found["draft_nelbo"] != found["target_nelbo"] and "target_bits" not in found
