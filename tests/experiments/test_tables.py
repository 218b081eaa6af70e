"""Every figure of the READMEs and docs/ is what a record says, and a changed one is found."""

import re
import types

import pytest

from tests.experiments.test_ssmd import script

tables = script("tables")


PAGES = {path.relative_to(tables.ROOT).as_posix(): path.read_text() for path in tables.pages()}


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_is_what_a_record_says(page):
  found = list(tables.problems(page, PAGES[page]))
  assert not found, "\n".join(problem.message for problem in found)


@pytest.mark.parametrize("name", tables.FILES)
def test_every_file_of_tables_is_what_the_records_say(name):
  text = (tables.EXPERIMENTS / name).read_text()
  assert not list(tables.file_problems(name, text))
  last = max(found.end() - 1 for found in re.finditer(r"\d", text))
  changed = text[:last] + str((int(text[last]) + 5) % 10) + text[last + 1 :]
  assert list(tables.file_problems(name, changed))


def test_pages_that_are_looked_at_elsewhere_are_there():
  assert set(tables.APART) < set(PAGES)


@pytest.mark.parametrize("page", [p for p in PAGES if tables.has_records(PAGES[p])])
def test_no_figure_can_be_changed_unseen(page):
  """Each number of a table, and of the prose that is no setting, with its last digit changed."""
  changed = 0
  for part in tables.parts(PAGES[page]):
    skipped: tuple[re.Pattern[str], ...] = (tables._COMMENT, tables._NO_PROSE)
    skipped += tuple(
      tables.pattern_of(word.strip())
      for words in tables._NO_RECORD.findall(part)
      for word in words.split(";")
    )
    hidden = [found.span() for pattern in skipped for found in pattern.finditer(part)]
    for found in tables._NUMBER.finditer(part):
      if any(first <= found.start() < last for first, last in hidden):
        continue
      last = max(at for at in range(*found.span()) if part[at].isdigit())
      other = part[:last] + str((int(part[last]) + 5) % 10) + part[last + 1 :]
      assert any(tables.problems(page, other)), f"{found.group(0)} in {part[last - 40 : last + 20]}"
      changed += 1
  assert changed


@pytest.fixture
def records(monkeypatch):
  """A file of tables with one record."""
  module = types.SimpleNamespace(
    value=lambda: 1.2849, bounds=lambda: (1.234, 1.351), share=lambda: 0.0644, many=lambda: 12_345,
    table=lambda: "| a |\n| --- |\n| 1.28 |",
  )  # fmt: skip
  monkeypatch.setattr(tables, "module_of", lambda name: module)
  cached = (tables.table_of, tables.values_of)
  for function in cached:
    function.cache_clear()
  yield
  for function in cached:
    function.cache_clear()


PAGE = """Faster by 1.28 times
[1.23, 1.35], worse by +6.4 % on 12,345 texts of 2 tokens.
<!-- figures, a.py: 1.28 = value(); [1.23, 1.35] = bounds(); +6.4 % = share(); 12,345 = many() -->
<!-- no record: 2 tokens -->

<!-- table: a.py table -->
| a |
| --- |
| 1.28 |
<!-- end -->
"""


def test_a_page_that_says_what_the_records_say(records):
  assert not list(tables.problems("docs/results.md", PAGE))


@pytest.mark.parametrize(
  ("old", "new", "message"),
  [
    ("by 1.28 times", "by 1.29 times", "'1.28' of a comment is not in the paragraph"),
    ("1.28 = value", "1.29 = value", "'1.29' of a comment is not in the paragraph"),
    ("value()", "share()", "'1.28' is not share(), which is 0.0644"),
    ("[1.23, 1.35]", "[1.23, 1.36]", "'[1.23, 1.36]' is not bounds()"),
    ("+6.4 %", "+6.5 %", "'+6.5 %' is not share(), which is 6.44"),
    ("12,345", "12,346", "'12,346' is not many()"),
    ("of 2 tokens", "of 3 tokens", "no record is named for '3'"),
    ("texts of", "texts and 7.5 of", "no record is named for '7.5'"),
    ("| 1.28 |", "| 1.29 |", "the table a.py table is not what the records say"),
    ("<!-- no", "| x | 0.5 |\n<!-- no", "no record is named for '0.5'"),
  ],
)
def test_what_differs_is_found(records, old, new, message):
  assert old in PAGE
  found = list(tables.problems("docs/results.md", PAGE.replace(old, new)))
  assert any(message in problem.message for problem in found), found


def test_tables_are_written_anew(records):
  broken = PAGE.replace("| 1.28 |", "| 9 |\n| 9 |")
  assert tables.with_tables(broken) == PAGE


@pytest.mark.parametrize(
  ("written", "value", "same"),
  [
    ("1.28", 1.2849, True), ("1.28", 1.2851, False), ("+6.4", 6.44, True), ("-0.5", -0.46, True),
    ("1.5e-5", 1.4996e-5, True), ("1.5e-5", 1.56e-5, False), ("12,345", 12345.4, True),
    ("2", 2.4, True), ("2", 2.6, False),
  ],
)  # fmt: skip
def test_numbers_are_compared_as_they_are_rounded(written, value, same):
  assert tables.is_value(written, value) is same


def test_what_counts_as_a_number():
  text = "stories260K has 260K weights, 4.2M tokens, +6.4 % of 1,024, [0.5, -0.7], 2.07 / 1.04, x.1, 3x, GPT-2."
  assert tables.numbers(text) == ["+6.4", "1,024", "0.5", "-0.7", "2.07", "1.04", "3"]


def test_formulas_and_parts_of_papers_are_no_figures():
  text = "Algorithm 2 and equations 3, 4 and 5 of (Shi et al. 2024, Table 1): $x_2 = 7$; $$1 + \n 2$$ 8 of Wu and Zhang 2025."
  assert tables.numbers(tables._NO_PROSE.sub(" ", text)) == ["8"]
