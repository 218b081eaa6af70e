"""How points become curves, and that the picture is drawn."""

import pytest

from sbdjax.evals import plot


def row(label, name, x, **decoder):
  sweep = {"label": label, "checkpoint": label, "judge": "the judge"}
  settings = {"sweep": sweep, "decoder": {"name": name, "max_tokens": 9, **decoder}}
  return dict(
    settings=settings, batch_size=1, tpf=x, judge_nll=x, repetition=0.1, prompts=3, device="cpu"
  )


def timed(row, seconds, run="then"):
  """`row` as measured now: with sums of texts, and with speeds."""
  each = dict(tokens=[9, 8, 9], nfe=[5, 4, 4], judge_nll=[8.0, 9.0, 5.0])
  each |= dict(repeated=[0, 1, 2], ngrams=[6, 5, 6])
  return {**row, "each": each, "speed": dict(tokens=[9, 8], seconds=[seconds], run=run)}


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
    "AR: a": 1,
    "SBD: a, EB, entropy": 2,
    "SBD: a, Factor": 1,
    "AR: b": 1,
    "SBD: b, EB, entropy": 1,
  }
  # With a single model only what differs is named.
  assert list(plot.curves(ROWS[:3])) == ["AR", "SBD"]


@pytest.mark.parametrize(
  ("decoder", "text"),
  [({"gamma": 0.25}, "γ=0.25"), ({"tau": 0.9}, "τ=0.9"), ({"tokens_per_step": 4}, "n=4"), ({}, "")],
)
def test_annotation(decoder, text):
  assert plot.annotation(decoder) == text


def test_draws_a_png_and_a_pdf_and_leaves_nothing_else(tmp_path):
  plot.draw_sweep(ROWS, tmp_path / "sweep.png")
  assert sorted(p.name for p in tmp_path.iterdir()) == ["sweep.pdf", "sweep.png"]
  data = (tmp_path / "sweep.png").read_bytes()
  assert data.startswith(b"\x89PNG") and len(data) > 10_000


@pytest.mark.long
def test_speeds_of_one_run_are_drawn_as_well_and_of_two_are_not(tmp_path, monkeypatch):
  panel, drawn = plot._panel, []
  monkeypatch.setattr(plot, "_panel", lambda *args: drawn.append(args) or panel(*args))

  def panels(rows):
    drawn.clear()
    plot.draw_sweep(rows, tmp_path / "sweep.png")
    return len(drawn)

  one_run = [timed(row, [1.0 + i, 2.0]) for i, row in enumerate(ROWS)]
  two = [*one_run[:-1], timed(ROWS[-1], [1.0, 2.0], run="later")]
  assert (panels(one_run), panels(two), panels(ROWS)) == (3, 2, 2)
