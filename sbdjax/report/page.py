"""The page: one HTML file that holds its data, style and program, and loads nothing.

Records come from elsewhere. They are JSON in a data block whose "<", ">" and "&" are written as
\\u003c, \\u003e and \\u0026, so that nothing in them can end it; the program puts them on the page as
text only; and a content security policy lets no other script run and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from sbdjax.report import rows
from sbdjax.report.measures import MEASURES, Value
from sbdjax.report.read import ABOUT, File, Record, environment

_STATIC = pathlib.Path(__file__).parent / "static"
_PROGRAMS = (
  "util.js",
  "reveal.js",
  "plot.js",
  "scatter.js",
  "prompts.js",
  "texts.js",
  "records.js",
  "main.js",
)
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def build(files: Sequence[File], title: str) -> str:
  """The page as text.

  Args:
    files: of `read.collect`.
    title: its heading.
  """
  return assemble("report.html", _PROGRAMS, data(files), title)


def assemble(body: str, programs: Sequence[str], content: Any, title: str) -> str:
  """A page of this package's own parts and of JSON-like `content`, which its program reads.

  Args:
    body: name of the file of `static` with what the page shows after its heading. It takes the place of
      `@@body@@` in page.html, as the other parts take those of their names.
    programs: names of scripts there, in order.
    title: its heading.
  """
  program = "\n".join((_STATIC / name).read_text("utf-8") for name in programs)
  style = (_STATIC / "report.css").read_text("utf-8")
  parts = {
    "title": html.escape(title),
    "body": (_STATIC / body).read_text("utf-8"),
    "policy": html.escape(_policy(program, style)),
    "style": style,
    "data": as_script(content),
    "program": program,
  }
  page = (_STATIC / "page.html").read_text("utf-8")
  # One pass: what is put in is not searched again.
  pieces = page.split("@@")
  return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _policy(program: str, style: str) -> str:
  sha = lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
  return (
    f"default-src 'none'; script-src 'sha256-{sha(program)}'; style-src 'sha256-{sha(style)}'; "
    "base-uri 'none'; form-action 'none'"
  )


def as_script(value: Any) -> str:
  """JSON that can stand inside a script element, all of it ASCII."""
  text = json.dumps(value, allow_nan=False, separators=(",", ":"))
  return text.translate(_ESCAPES)


def data(files: Sequence[File]) -> dict[str, Any]:
  """What the page holds: every record, and what is drawn of them.

  `files[f].records[r]` is the record without what it says of program and machine, which is
  `environments[files[f].about[r]]`. Points are columns of equal length.
  """
  environments: dict[str, int] = {}
  embedded = [_file(file, environments) for file in files]
  return {
    "files": embedded,
    "environments": [json.loads(text) for text in environments],
    "measures": [m._asdict() for m in MEASURES],
    "points": _columns(rows.points(files)),
    "curves": [c._asdict() for c in rows.curves(files)],
    "texts": [list(t) for t in rows.texts(files)],
  }


def _file(file: File, environments: dict[str, int]) -> dict[str, Any]:
  about = [
    environments.setdefault(json.dumps(environment(r), sort_keys=True), len(environments))
    for r in file.records
  ]
  return {
    "path": file.path,
    "note": file.note,
    "run": file.run,
    "settings": file.settings,
    "environment": file.environment,
    "records": [_without_environment(r) for r in file.records],
    "about": about,
  }


def _without_environment(record: Record) -> Record:
  return {name: value for name, value in record.items() if name not in ABOUT}


def _columns(points: Sequence[rows.Point]) -> dict[str, Any]:
  sets: dict[str, list[int]] = {}
  for i, point in enumerate(points):
    sets.setdefault(point.of, []).append(i)
  names = [""] * len(points)
  for indices in sets.values():
    for i, name in zip(indices, rows.series([points[i] for i in indices]), strict=True):
      names[i] = name
  series, at_series = _numbered(names)
  of, at_set = _numbered([p.of for p in points])
  keys = [m.key for m in MEASURES if any(m.key in p.values for p in points)]
  return {
    "sets": of,
    "series": series,
    "set": at_set,
    "of": at_series,
    "file": [p.file for p in points],
    "record": [p.record for p in points],
    "note": [rows.annotation(p.decoder) for p in points],
    **{part: {key: _part(points, key, part) for key in keys} for part in Value._fields},
  }


def _part(points: Sequence[rows.Point], key: str, part: str) -> list[float | None]:
  """A field of `Value` of every point's measure; None where it was not measured."""
  return [getattr(p.values[key], part) if key in p.values else None for p in points]


def _numbered(names: Sequence[str]) -> tuple[list[str], list[int]]:
  """Different names in order, and the index of each."""
  known = {name: i for i, name in enumerate(dict.fromkeys(names))}
  return list(known), [known[name] for name in names]
