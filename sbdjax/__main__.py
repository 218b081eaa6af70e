"""`python -m sbdjax VERB ...`: finds the verb's module and runs it."""

from __future__ import annotations

import ast
import importlib
import pathlib
import sys

from sbdjax.cli.common import run_main
from sbdjax.errors import UsageError
from sbdjax.settings import nearest

_FOLDER = pathlib.Path(__file__).parent / "cli"


def verbs() -> dict[str, str]:
  """Verb -> first line of its module's docstring, without importing any of them.

  A verb is a module of `sbdjax.cli` with a function `main` and a name of one word; the others are
  what verbs share, and parts of them.
  """
  found = {}
  for path in sorted(_FOLDER.glob("*.py")):
    module = ast.parse(path.read_text())
    if "_" not in path.stem and any(
      isinstance(node, ast.FunctionDef) and node.name == "main" for node in module.body
    ):
      found[path.stem] = (ast.get_docstring(module) or "").split("\n", 1)[0]
  return found


def _usage() -> str:
  lines = [f"  {name:<14}{summary}" for name, summary in verbs().items()]
  return "\n".join(["usage: python -m sbdjax VERB [--help] [--debug] ...", "", *lines])


def _dispatch(argv: list[str]) -> int:
  if not argv or argv[0] in ("-h", "--help"):
    print(_usage())
    return 0
  verb, *rest = argv
  known = verbs()
  if verb not in known:
    raise UsageError(
      f"unknown verb {verb!r}{nearest(verb, known)}: choose one of {', '.join(known)}"
    )
  return importlib.import_module(f"sbdjax.cli.{verb}").main(rest)


def main(argv: list[str] | None = None) -> int:
  """Runs one verb and returns the process's exit code."""
  return run_main(_dispatch, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
  sys.exit(main())
