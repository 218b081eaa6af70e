"""WikiText-2 by documents: perplexity of a word and of a byte, bits of a byte.

As lm-evaluation-harness 0.4.13 has it (`lm_eval/tasks/wikitext`): a page is a document, it is
detokenised before it is scored, and words and bytes are those before. The file is the validation
split with its rare words replaced by <unk>; the harness takes the test split with all words, so
values are not to be compared with published ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sbdjax.evals.tasks.files import Files
from sbdjax.evals.tasks.task import (
  Document,
  Metric,
  Rolling,
  Scored,
  Task,
  Values,
  bits_per_unit,
  weighted_perplexity,
)

# What WikiText's tokeniser took apart, put together again: plain texts first, then patterns. The
# order and the odd ones among them (a slash for a backslash in the first pattern) are the harness's.
_EARLY = (("s '", "s'"),)
_EARLY_PATTERNS = ((r"/' [0-9]/", r"/'[0-9]/"),)
_JOINED = (
  (" @-@ ", "-"),
  (" @,@ ", ","),
  (" @.@ ", "."),
  *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
)
_BRACKETS = (
  (r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
  (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
  (r"{\s*([^}]*?)\s*}", r"{\1}"),
  (r"\"\s*([^\"]*?)\s*\"", r'"\1"'),
  (r"'\s*([^']*?)\s*'", r"'\1'"),
)
_LATE = (
  ("= = = =", "===="),
  ("= = =", "==="),
  ("= =", "=="),
  (" ° ", "°"),
  (" \n", "\n"),
  ("\n ", "\n"),
  (" N ", " 1 "),
  (" 's", "'s"),
)


def detokenized(page: str) -> str:
  """A page of WikiText as ordinary text."""
  steps = (
    (_replaced, _EARLY),
    (_substituted, _EARLY_PATTERNS),
    (_replaced, _JOINED),
    (_substituted, _BRACKETS),
    (_replaced, _LATE),
  )
  for step, pairs in steps:
    page = step(page, pairs)
  return page


def _replaced(text: str, pairs: Sequence[tuple[str, str]]) -> str:
  for old, new in pairs:
    text = text.replace(old, new)
  return text


def _substituted(text: str, pairs: Sequence[tuple[str, str]]) -> str:
  for pattern, new in pairs:
    text = re.sub(pattern, new, text)
  return text


def pages(text: str) -> list[str]:
  """The articles of a WikiText file; each begins with its title, " = Title = "."""
  found: list[list[str]] = [[]]
  for line in text.split("\n"):
    heading = line.replace("= = =", "===").replace("= =", "==").strip()
    if heading.startswith("= ") and heading.endswith(" ="):
      found.append([])
    found[-1].append(line)
  joined = ["\n".join(lines) for lines in found]
  return [page for page in joined if page.strip()]


def _documents(files: Files) -> Sequence[Document]:
  return [{"page": page} for page in pages(files.text("valid.txt.xz"))]


def _item(doc: Document, id: str, shots: Sequence[Document]) -> Rolling:
  del shots
  page = doc["page"]
  return Rolling(id, detokenized(page), len(re.split(r"\s+", page)), len(page.encode()))


def of_text(item: Rolling, answer: Scored) -> Values:
  """The sums that perplexities are made of."""
  by_word, by_byte = (answer.log_prob, item.words), (answer.log_prob, item.bytes)
  return {"word_perplexity": by_word, "byte_perplexity": by_byte, "bits_per_byte": by_byte}


TASKS = (
  Task(
    "wikitext",
    _documents,
    _item,
    of_text,
    {
      "word_perplexity": Metric(weighted_perplexity),
      "byte_perplexity": Metric(weighted_perplexity),
      "bits_per_byte": Metric(bits_per_unit),
    },
  ),
)
