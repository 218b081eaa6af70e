"""experiments/one_task: its decoders exist, what it records of them, and its tables."""

import json

import pytest

from sbdjax.bench.timing import Pass
from sbdjax.data.exercises import exercises
from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.decode.decoding import from_flat
from sbdjax.decode.generate import Result
from sbdjax.evals import exact_match
from sbdjax.report import rows
from sbdjax.report.read import File
from tests.experiments.test_ssmd import script

TOKENIZER = load_tokenizer("tok512")


class Model:
  def need_tokenizer(self):
    return TOKENIZER


def result(prompt, text, nfe):
  tokens = [*TOKENIZER.encode_batch([text], continues=True)[0].tolist(), 2]
  size = len(tokens)
  return Result(prompt, tokens, size, nfe, 1, 8, 0, 0, list(range(size)), "eos", 0.5, 1)


def test_every_decoder_exists_once():
  module = script("one_task/measure")
  for model in module.MODELS:
    flat = [from_flat({**d, "max_tokens": 64}).flat() for d in model.decoders]
    assert len({json.dumps(f, sort_keys=True) for f in flat}) == len(flat), model.label
  rules = {d.get("rule") for m in module.MODELS for d in m.decoders}
  assert set(module.RULES) <= rules


def test_what_is_recorded_of_a_point():
  module = script("one_task/measure")
  asked = exercises("test", 5)
  prompts = exact_match.encode(TOKENIZER, asked)
  texts = [e.response for e in asked[:4]] + [" no idea."]
  results = [result(p, text, 4) for p, text in zip(prompts, texts, strict=True)]
  found = module.measurements(Model(), asked, [Pass(results, 0.1, 2.0), Pass(results, 0.1, 4.0)])
  tokens = sum(r.valid for r in results)
  assert found["accuracy"]["value"] == 0.8 and found["by_kind"]["date"] == 0.0
  assert found["each"]["correct"] == [1, 1, 1, 1, 0] and found["tpf"] == tokens / 20
  assert found["tokens_per_second_high"] == tokens / 2.0 and found["decode_seconds"] == 3.0
  first = found["errors"]["by_masked_left"]["0"]
  assert first["tokens"] == tokens and first["substituted"] + first["inserted"] > 0
  shown = found["texts"][0]
  assert "".join(shown["pieces"]) == shown["text"] == asked[0].response
  assert len(shown["pieces"]) == len(shown["reveal_step"]) == results[0].valid
  json.dumps(found, allow_nan=False)


ERRORS = {
  "deleted": 5,
  "by_masked_left": {
    "0": {"tokens": 60, "substituted": 6, "inserted": 0},
    "2": {"tokens": 40, "substituted": 4, "inserted": 6},
  },
}


def fake(label, decoder, accuracy, tpf):
  interval = {"value": accuracy, "low": accuracy - 0.05, "high": accuracy + 0.05}
  settings = {"model": {"label": label}, "decoder": {"max_tokens": 64, **decoder}}
  settings |= {"exercises": {"split": "test", "count": 20, "seed": 0}}
  return {"settings": settings, "accuracy": interval, "tpf": tpf} | {
    "tokens_per_second": 100.0, "prompts": 20, "errors": ERRORS,
    "each": {"tokens": [3 * tpf, tpf], "nfe": [3, 1], "correct": [1, 0] * 10},
  }  # fmt: skip


def test_the_fastest_that_is_as_good(tmp_path):
  module = script("one_task/tables")
  gammas = [(0.1, 0.8, 1.5), (0.2, 0.785, 1.8), (0.4, 0.7, 2.2)]
  eb = {"name": "sbd", "rule": "eb_entropy", "block_size": 8}
  records = [fake("SBD", {"name": "ar"}, 0.8, 1.0)]
  records += [fake("SBD", {**eb, "gamma": g}, a, t) for g, a, t in gammas]
  records += [fake("SBD", {"name": "jacobi", "block_size": 8}, 0.5, 3.0)]
  points = rows.points([File("Every point", records)])
  table = module.fastest(points, records)
  assert [line[:2] for line in table.lines] == [
    ["ar", ""], ["sbd eb_entropy", "gamma=0.2"], ["jacobi", "none"]
  ]  # fmt: skip
  assert (
    table.lines[1][2:4] == ["1.80 [1.80, 1.80]", "0.785 [0.735, 0.835]"]
    and table.lines[1][-1] == "50 [15, 85]"  # Wilson's of 2 of 4, of one kind
  )
  assert module.errors(points, records).lines[0] == [
    "ar", "", "10.0%", "6.0%", "5.0%", "10.0%", "", "25.0%", ""
  ]  # fmt: skip
  path = tmp_path / "points.jsonl"
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  assert module.main([f"--points={path}", f"--out={tmp_path}"]) == 0
  assert (tmp_path / "one_task.png").stat().st_size > 10_000
  assert "gamma=0.2" in (tmp_path / "tables.md").read_text()
  assert r"\toprule" in (tmp_path / "tables.tex").read_text()


def test_texts_are_compared_with_those_that_a_decoder_promises():
  module = script("one_task/tables")

  def point(label, crc, **decoder):
    settings = {"model": {"label": label}, "decoder": {"temperature": 0.0, **decoder}}
    return {"settings": settings, "text_crc32": crc}

  records = [
    point("A", 1, name="ar"),
    point("B", 2, name="ar"),
    point("B", 3, name="static"),
    point("B", 4, name="static", temperature=1.0),
    point("B", 5, name="dynamic", threshold=0.9),
  ]
  said = lambda *args, **decoder: module.texts_of(point(*args, **decoder), records)
  assert said("A", 1, name="jacobi") == said("B", 2, name="sbd_verified") == "those of AR"
  assert said("A", 2, name="jacobi") == "NO" and said("A", 1, name="sbd") == ""
  assert said("B", 3, name="freedave") == "those of static"
  assert said("B", 3, name="freedave", temperature=1.0) == "NO"
  assert said("B", 4, name="freedave", temperature=1.0) == "those of static"
  assert said("B", 5, name="freedave", threshold=0.9) == "those of threshold"
  assert said("B", 5, name="freedave", threshold=0.8) == ""


def test_trajectories_are_counted():
  import numpy as np

  from sbdjax.data.trajectories import Example

  module = script("jacobi_stories260k/trajectory")
  #            y(0)          y(1)          y(2)          fixed
  points = [[9, 9, 9, 9], [1, 9, 3, 4], [1, 2, 9, 4], [1, 2, 3, 4]]
  kind = module.kinds(np.array(points))
  # Of y(1), 3 is right but does not stay; 4 does.
  assert kind.tolist() == [[0, 0, 0, 0], [1, 0, 0, 2], [1, 1, 0, 2], [1, 1, 1, 1]]
  found = module.counts([Example(np.arange(4), 0, [np.array(points)])])
  assert found["forwards"] == 3 and found["tokens"] == 4
  # The last forward adds 3 and 4: one more than a forward of AR.
  assert found["fast_forwarded_tokens"] == 1 and found["forwards_that_fast_forward"] == 1
  assert found["stationary_tokens"] == 2 and found["useful_n_grams"] == 0
  assert module.runs(np.array([2, 2, 0, 1, 2])) == [2, 1]


@pytest.mark.parametrize("missing", ["jacobi/round1", "ntp"])
def test_models_that_are_not_there_are_left_out(tmp_path, capsys, missing):
  module = script("one_task/measure")
  assert module.main([f"--runs={tmp_path}", f"--out={tmp_path / 'p.jsonl'}", "--count=1"]) == 0
  assert f"left out: no model in {tmp_path / missing}" in capsys.readouterr().out


def test_trainings_of_other_seeds_have_the_main_decoders_and_lossless_ones_their_text():
  module, measure = script("one_task/tables"), script("one_task/measure")
  main = {model.label: len(model.decoders) for model in measure.OF_SEEDS}
  lines = [line.split(" | ") for line in module.seeds().splitlines()[2:]]
  models = [line[0].removeprefix("| ") for line in lines]
  assert len(models) > 20 and all(models.count(model) == main[model] for model in models)
  lossless = ("verified SBD", "Jacobi", "FreeDave")
  texts = {line[-1] for line in lines if line[1].startswith(lossless)}
  assert texts == {"those of AR |", "those of static |"}
