"""How points become curves, and that the picture is drawn."""

import pytest

from sbdjax.evals import plot


def row(label, name, x, **decoder):
  sweep = {"label": label, "checkpoint": label, "judge": "the judge"}
  settings = {"sweep": sweep, "decoder": {"name": name, "max_tokens": 9, **decoder}}
  return dict(
    settings=settings, batch_size=1, tpf=x, tokens_per_second=100 * x, judge_nll=x, prompts=3,
    device="cpu",
  )  # fmt: skip


ROWS = [
  row("a", "ar", 1.0),
  row("a", "sbd", 1.5, block_size=16, rule="eb_entropy", gamma=0.1),
  row("a", "sbd", 1.2, block_size=16, rule="eb_entropy", gamma=0.0),
  row("a", "sbd", 1.4, block_size=16, rule="factor", f=0.5),
  row("b", "ar", 1.0),
  row("b", "sbd", 1.6, block_size=16, rule="eb_entropy", gamma=0.1),
]


def test_curves_share_all_settings_but_the_one_that_moves():
  groups = plot.curves(ROWS)
  assert {label: len(group) for label, group in groups.items()} == {
    "AR a": 1,
    "SBD a, eb_entropy": 2,
    "SBD a, factor": 1,
    "AR b": 1,
    "SBD b, eb_entropy": 1,
  }
  # With a single model only what differs is named.
  assert list(plot.curves(ROWS[:3])) == ["AR", "SBD"]


@pytest.mark.parametrize(
  ("decoder", "text"),
  [({"gamma": 0.25}, "γ=0.25"), ({"tau": 0.9}, "τ=0.9"), ({"tokens_per_step": 4}, "n=4"), ({}, "")],
)
def test_annotation(decoder, text):
  assert plot.annotation(decoder) == text


def test_draws_a_png_and_leaves_nothing_else(tmp_path):
  plot.draw_sweep(ROWS, tmp_path / "sweep.png")
  assert [p.name for p in tmp_path.iterdir()] == ["sweep.png"]
  data = (tmp_path / "sweep.png").read_bytes()
  assert data.startswith(b"\x89PNG") and len(data) > 10_000
