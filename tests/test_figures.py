"""Figures: their files and sizes, colours that all readers tell apart, notes that do not collide."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from sbdjax import figures
from sbdjax.bootstrap import Interval
from sbdjax.evals import wording


def draw(path):
  with figures.drawing(path, figures.COLUMN, 1.5) as figure:
    figure.add_subplot().plot([1, 2], [3, 4], label="curve")


def test_png_and_pdf_are_written_alike_each_time(tmp_path):
  draw(tmp_path / "a.png")
  draw(tmp_path / "b")
  assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pdf", "a.png", "b.pdf", "b.png"]
  for suffix, start in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
    assert first == second and first.startswith(start)
  size = (tmp_path / "a.png").read_bytes()[16:24]
  assert np.frombuffer(size, ">u4").tolist() == [figures.COLUMN * figures.DPI, 1.5 * figures.DPI]


def test_a_failure_leaves_no_file(tmp_path):
  with pytest.raises(ZeroDivisionError), figures.drawing(tmp_path / "a.png", 1, 1):
    _ = 1 / 0
  assert not list(tmp_path.iterdir())


# Linear light -> what is left of it without one kind of cone (Machado et al. 2009, severity 1).
_BLIND = {
  "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
  "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
  "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


@pytest.mark.parametrize("kind", [None, *_BLIND])
def test_colours_are_told_apart_by_all_readers(kind):
  linear = np.array([to_rgb(c) for c in figures.COLOURS]) ** 2.2
  seen = linear if kind is None else linear @ np.array(_BLIND[kind]).T
  seen = np.clip(seen, 0, 1) ** (1 / 2.2)
  least = min(np.abs(a - b).max() for a, b in itertools.combinations(seen[:5], 2))
  assert least > 0.1


def test_bars_are_lengths_and_none_without_bounds():
  found = [Interval(2.0, 1.5, 2.25), Interval(1.0)]
  assert figures.bars(found) == [[0.5, 0.0], [0.25, 0.0]]


@pytest.mark.parametrize(("width", "columns"), [(9, 4), (4, 2), (0.5, 1)])
def test_a_legend_has_as_many_columns_as_fit(tmp_path, width, columns):
  with figures.drawing(tmp_path / "a.png", width, 1.5) as figure:
    axes = figure.add_subplot()
    for number in range(4):
      axes.plot([1, 2], [3, number], label=f"a curve with a long name, {number}")
    figures.legend_below(figure, 4)
    figure.canvas.draw()
    (legend,) = figure.legends
    left = {round(text.get_window_extent().x0) for text in legend.get_texts()}
    assert len(left) == columns
    assert columns == 1 or legend.get_window_extent().width <= figure.bbox.width


def test_notes_are_beside_their_points_and_do_not_collide(tmp_path):
  """Twelve points in a bunch, whose texts are wider than they are apart."""
  x = np.linspace(1, 1.5, 12)
  with figures.drawing(tmp_path / "a.png", figures.COLUMN, 2.5) as figure:
    axes = figure.add_subplot()
    axes.plot(x, x)
    axes.set(xlim=(0, 3), ylim=(0, 3))
    figures.place_notes(axes, [figures.Note(a, a, "γ=0.125") for a in x])
    renderer = figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    frame = axes.get_window_extent(renderer)
  assert 5 <= len(boxes) <= 12
  assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
  assert all(frame.x0 <= b.x0 and b.x1 <= frame.x1 for b in boxes)
  for text, box in zip(axes.texts, boxes, strict=True):
    middle = (box.min + box.max) / 2
    assert np.abs(middle - axes.transData.transform(text.xy)).max() < 1.5 * box.width


def test_a_note_does_not_cover_a_curve_where_there_is_room(tmp_path):
  with figures.drawing(tmp_path / "a.png", figures.COLUMN, 2.5) as figure:
    axes = figure.add_subplot()
    axes.plot([0, 1], [0.5, 0.5])
    axes.set(ylim=(0, 1))
    figures.place_notes(axes, [figures.Note(0.5, 0.5, "here")])
    box = axes.texts[0].get_window_extent(figure.canvas.get_renderer())
    height = axes.transData.transform((0, 0.5))[1]
  assert not box.y0 < height < box.y1


def test_settings_in_words():
  decoder = {
    "name": "sbd_verified", "block_size": 4, "drafting": "fan_out", "candidates": True,
    "lookup": "none", "eager": False, "draft_steps": 2,
  }  # fmt: skip
  words = "verified SBD: blocks of 4, fan-out, second choices, draft steps 2"
  assert wording.described(decoder) == words
  assert wording.described({"name": "my_way", "rule": "eb_entropy"}) == "my way: EB, entropy"
  assert [wording.name(x) for x in ("decoder.block_size", "tokens_per_second", "a.b_c")] == [
    "block size", "tokens/s", "b c"
  ]  # fmt: skip
