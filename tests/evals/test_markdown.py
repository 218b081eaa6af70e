"""Tables of points."""

import pytest

from sbdjax.bootstrap import Interval
from sbdjax.evals import markdown
from tests.evals.test_paired import row


def test_a_table():
  shown = markdown.table(("a", "b"), [(1, None), ("x", 2.5)])
  assert shown == "| a | b |\n|---|---|\n| 1 |  |\n| x | 2.5 |"
  assert markdown.percent(Interval(0.0644, 0.037, 0.093)) == "+6.4 % [+3.7, +9.3]"
  assert markdown.percent(Interval(-0.5), 0) == "-50 %"


def test_a_point_is_found_by_its_settings():
  rows = [row("a", "ar", label="a"), row("b", "ar", label="b"), row("b", "sbd", label="b")]
  assert (
    markdown.find(rows, "b", name="ar") is rows[1] and markdown.find(rows, name="sbd") is rows[2]
  )
  for wanted in ({"name": "ar"}, {"name": "jacobi"}):
    with pytest.raises(LookupError, match="points of any model have"):
      markdown.find(rows, **wanted)


def test_quality_is_told_against_a_reference():
  ar, same = row("a", "ar"), row("a", "verified")
  other = row("a", "sbd") | {"text_crc32": 2}
  assert [markdown.against(x, ar) for x in (ar, same)] == ["", "the same text"]
  assert markdown.against(other, ar) == "+0.0 % [+0.0, +0.0]"
