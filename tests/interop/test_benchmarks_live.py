"""Log-likelihoods of benchmark items, choice by choice, against `transformers` on the same weights.

Runs where the extra `parity` and SmolLM2 (`make smollm2`) are installed.
"""

import json

import pytest

pytest.importorskip("torch", reason="needs the extra `parity`: torch is not installed")
pytest.importorskip(
  "transformers", reason="needs the extra `parity`: transformers is not installed"
)

from sbdjax import __main__ as entry  # noqa: E402
from sbdjax.interop import smollm2  # noqa: E402
from tests.evals.tasks import written  # noqa: E402
from tests.experiments.test_ssmd import script  # noqa: E402


@pytest.mark.long
def test_choices_have_the_likelihoods_of_transformers(tmp_path):
  if not smollm2.path().is_file():
    pytest.skip("SmolLM2-135M is not installed: run `make smollm2`")
  module = script("benchmarks_lm/beside_transformers")
  (tmp_path / "data").mkdir()
  data, ours, out = (
    written.write(tmp_path / "data"),
    tmp_path / "ours.jsonl",
    tmp_path / "out.jsonl",
  )
  tasks = "hellaswag,arc_easy,piqa,winogrande"
  flags = [f"--checkpoint={smollm2.NAME}", f"--data={data}", "--dtype=float32", f"--tasks={tasks}"]
  assert entry.main(["evaluate", *flags, "--offset=1", "--limit=2", f"--out={ours}"]) == 0
  assert module.main([str(ours), f"--data={data}", f"--out={out}"]) == 0
  lines = [json.loads(line) for line in out.read_text().splitlines()]
  assert [line["task"] for line in lines] == tasks.split(",")
  for line in lines:
    assert line["same_tokens"] and line["largest_difference"] < 1e-3, line
    assert line["ours"] == line["transformers"] and line["same_answers"] == line["items"]
    assert any(x < -1 for each in line["each"]["ours"] for x in each)
