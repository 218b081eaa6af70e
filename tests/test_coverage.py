"""docs/coverage.md: a row for each item of the papers, whose files, scripts and presets are there."""

import collections
import json
import pathlib
import re

import pytest

from sbdjax import presets
from sbdjax.cli import VERBS

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "coverage.md"
STATES = ("recorded", "tested", "partly", "to run", "not here")
ITEMS = {"SBD": 28, "SBD review": 4, "Jacobi Forcing": 28, "SSMD": 27, "FreeDave": 18}


def cells(line):
  return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table():
  """The rows of the long table."""
  found = [cells(line) for line in PAGE.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
  return [
    dict(zip(("number", "paper", "item", "state", "where", "how"), c, strict=True)) for c in found
  ]


ROWS = table()


def links(text):
  return [(PAGE.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", text)]


def test_every_item_has_its_row():
  assert [int(row["number"]) for row in ROWS] == list(range(1, 106))
  assert collections.Counter(row["paper"] for row in ROWS) == ITEMS
  assert len({(row["paper"], row["item"]) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['number']}")
def test_a_row_says_where_and_how(row):
  assert row["state"] in STATES and all(row.values())
  found = links(row["where"])
  assert found and all(path.is_file() for path in found), row["where"]
  assert all(path.is_file() for path in links(row["how"]))
  folder = {"recorded": "experiments", "tested": "tests"}.get(row["state"])
  if folder:
    assert all(path.is_relative_to(ROOT / folder) for path in found)
  if row["state"] == "recorded":
    assert all(path.suffix in (".json", ".jsonl", ".png") for path in found)
    assert "`" in row["how"]
  for command in re.findall(r"`([^`]+)`", row["how"]):
    check_command(command)


def check_command(command):
  """A command that starts something starts something that is there."""
  words = command.split()
  if words[0] in ("bash", "python") and words[1] != "-m":
    assert (ROOT / words[1]).is_file(), command
  if words[:3] == ["python", "-m", "sbdjax"]:
    assert words[3] in VERBS, command
  for name in re.findall(r"preset:(\w+)", command):
    assert name in presets.names(), command


def test_the_counts_are_those_of_the_rows():
  heads, *lines = [cells(x) for x in PAGE.read_text().splitlines() if x.startswith("| ")][
    : 2 + len(ITEMS)
  ]
  assert heads == ["paper", *STATES, "all"]
  for paper, *counts in lines:
    of_paper = [row["state"] for row in ROWS if paper in (row["paper"], "all")]
    assert list(map(int, counts)) == [*map(of_paper.count, STATES), len(of_paper)]


def test_records_that_are_named_hold_something():
  for row in ROWS:
    for path in links(row["where"]):
      if path.suffix == ".jsonl":
        assert [json.loads(line) for line in path.read_text().splitlines()]
