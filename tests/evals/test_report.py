"""Tables of points."""

import pytest

from sbdjax.evals import report
from sbdjax.evals.bootstrap import Interval
from tests.evals.test_paired import row


def test_markdown():
  shown = report.markdown(("a", "b"), [(1, None), ("x", 2.5)])
  assert shown == "| a | b |\n|---|---|\n| 1 |  |\n| x | 2.5 |"
  assert report.percent(Interval(0.0644, 0.037, 0.093)) == "+6.4 % [+3.7, +9.3]"
  assert report.percent(Interval(-0.5), 0) == "-50 %"


def test_a_point_is_found_by_its_settings():
  rows = [row("a", "ar", label="a"), row("b", "ar", label="b"), row("b", "sbd", label="b")]
  assert report.find(rows, "b", name="ar") is rows[1] and report.find(rows, name="sbd") is rows[2]
  for wanted in ({"name": "ar"}, {"name": "jacobi"}):
    with pytest.raises(LookupError, match="points of any model have"):
      report.find(rows, **wanted)


def test_quality_is_told_against_a_reference():
  ar, same = row("a", "ar"), row("a", "verified")
  other = row("a", "sbd") | {"text_crc32": 2}
  assert [report.against(x, ar) for x in (ar, same)] == ["", "the same text"]
  assert report.against(other, ar) == "+0.0 % [+0.0, +0.0]"
