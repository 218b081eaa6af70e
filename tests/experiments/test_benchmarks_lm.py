"""The tables of recorded benchmarks say what the records hold."""

import json

import pytest

from sbdjax.evals.tasks.task import Metric, Task
from tests.experiments.test_ssmd import script


def test_tables(tmp_path):
  module = script("benchmarks_lm/tables")
  settings = {"checkpoint": "m", "dtype": "float32", "estimator": "exact"}
  records = [{"settings": settings, "git_commit": "abc"}]
  for task, scores in (
    ("arc_easy", (1, 1, 0, 1)),
    ("arc_challenge", (0, 1)),
    ("hellaswag", (1, 0)),
  ):
    values = [{name: float(x) for name in ("acc", "acc_norm", "acc_bytes")} for x in scores]
    records += [{"task": task, "id": str(i), "values": v} for i, v in enumerate(values)]
  path = tmp_path / "records.jsonl"
  path.write_text("".join(json.dumps(record) + "\n" for record in records))
  runs, items = module.read(path)
  found = module.outcomes(items)
  assert runs[0]["settings"] == settings and found["arc_easy"].items == 4
  assert "| arc_easy | 4 | acc_norm | 75.0 [25.0, 100.0] % |" in module.results_table(found)
  table = module.published_table(found, items)
  assert "| hellaswag | acc_norm | 50.0 [0.0, 100.0] % | 40.9 % | yes |" in table
  assert "| ARC, mean of both | acc_norm | 62.5 [" in table and "piqa" not in table
  average = module.arc_average(items, "acc_norm")
  wide, narrow = 0.5, 0.5  # of arc_challenge below and above its 0.5
  assert average.low == pytest.approx(0.625 - (wide**2 + 0.5**2) ** 0.5 / 2)
  assert average.high == pytest.approx(0.625 + (narrow**2 + 0.25**2) ** 0.5 / 2)


def test_the_table_beside_transformers(tmp_path, monkeypatch):
  module = script("benchmarks_lm/tables")
  metrics = {"acc": [0.5, 0.25, 0.75], "acc_norm": [0.4, 0.3, 0.5]}
  common = dict(items=4, choices=16, same_answers=4, ours=metrics, transformers=metrics)
  lines = [
    common | dict(task="a", largest_difference=2e-5),
    common | dict(task="b", largest_difference=3e-6),
  ]
  path = tmp_path / "beside.jsonl"
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  monkeypatch.setattr(module, "BESIDE", path)
  row = "| a | 4 | 16 | 2.0e-05 | 4 of 4 | acc | 50.0 [25.0, 75.0] % | 50.0 [25.0, 75.0] % |"
  assert row in module.beside_transformers()
  assert module.largest_difference() == 2e-5


def test_what_every_answer_cost_is_recorded(tmp_path):
  module = script("benchmarks_lm/answers")
  task = Task("t", lambda files: [], lambda *_: None, lambda *_: {}, {"right": Metric()})
  costs = {"nfe": 4, "query_tokens": 8, "seconds": 0.5, "finish": "length", "same": True}
  of = lambda tokens: costs | {"tokens": tokens, "values": {"right": float(tokens > 6)}}
  lines = [{"id": f"q{n}", "runs": {"AR": of(n), "other": of(2 * n)}} for n in (4, 6)]
  module.write(task, lines, {"max_tokens": 8}, tmp_path / "out.jsonl")
  module.write(task, lines[:1], {"max_tokens": 9}, tmp_path / "out.jsonl")
  module.write(
    task, lines, {"max_tokens": 9}, tmp_path / "out.jsonl"
  )  # in place of the line before
  kept, _, ar, other = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
  assert kept["settings"] == {"max_tokens": 8} and ar["settings"] == {"max_tokens": 9}
  assert ar["each"]["id"] == other["each"]["id"] == ["q4", "q6"]
  assert other["each"]["tokens"] == [8, 12] and ar["each"]["finish"] == ["length"] * 2
  assert other["values"]["right"][0] == 1.0 and other["tpf"][0] == 20 / 8
