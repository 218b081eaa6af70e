"""Records of work that several processes share: each adds to a file of its own, the last joins them.

Process 1 of 4 writes points.part-1-of-4.jsonl beside points.jsonl. Whoever reads sees the records
of all, those of an earlier job with another number of processes too.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from sbdjax.appending import append_line
from sbdjax.data.files import write_atomically
from sbdjax.evals.record import JsonLines
from sbdjax.share import WHOLE, Share


def _key(record: dict[str, Any]) -> str:
  return json.dumps(record, sort_keys=True)


class SharedLines:
  """The records of a file and of its parts; `append` writes to this process's part.

  Alone, that is the file.

  Args:
    path: FILE.jsonl.
    share: this process's.

  Attributes:
    records: what was there when it was last read, and what was added since.

  Raises:
    DataError: see `JsonLines`.
  """

  def __init__(self, path: pathlib.Path, share: Share = WHOLE):
    self.path = path
    name = f"{path.stem}.part-{share.index}-of-{share.count}{path.suffix}"
    self._own = path.with_name(name) if share.name else path
    self.records: list[dict[str, Any]] = []
    self.read()

  def _parts(self) -> list[pathlib.Path]:
    name = re.compile(rf"{re.escape(self.path.stem)}\.part-\d+-of-\d+{re.escape(self.path.suffix)}")
    there = self.path.parent.iterdir() if self.path.parent.is_dir() else ()
    return sorted(path for path in there if name.fullmatch(path.name))

  def read(self) -> None:
    """Reads all files anew."""
    # Parts first: one that is gone has been joined, and is in the file then.
    of_parts = [r for part in self._parts() for r in JsonLines(part).records]
    found = {_key(r): r for r in [*JsonLines(self.path).records, *of_parts]}
    self.records = list(found.values())

  def append(self, record: dict[str, Any]) -> None:
    """Adds one record, and waits for the disk."""
    append_line(self._own, json.dumps(record, allow_nan=False))
    self.records.append(record)

  def join(self, last: Sequence[dict[str, Any]] = ()) -> None:
    """Puts the records of all parts into the file, and removes the parts.

    Two processes that do it at once write the same.

    Args:
      last: those that come after all others, in this order.
    """
    sizes = {part: part.stat().st_size for part in self._parts() if part.exists()}
    if not sizes:
      return
    self.read()
    at_end = {_key(r): r for r in last}
    self.records = [r for r in self.records if _key(r) not in at_end] + list(at_end.values())
    text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in self.records)
    write_atomically(self.path, lambda file: file.write(text.encode()))
    for part, size in sizes.items():
      if part.exists() and part.stat().st_size == size:  # else more has come, for the next time
        part.unlink(missing_ok=True)
