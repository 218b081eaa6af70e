"""`python -m sbdjax VERB ...`: runs the verb's module."""

from __future__ import annotations

import signal

if (
  __name__ == "__main__"
):  # Ctrl-C while modules are imported ends the process, without a traceback
  signal.signal(signal.SIGINT, signal.SIG_DFL)

import gc
import importlib
import sys
from types import FrameType

from sbdjax import host_pages
from sbdjax.cli import VERBS, compilation_cache
from sbdjax.cli.common import run_main
from sbdjax.errors import UsageError
from sbdjax.settings import nearest


def _usage() -> str:
  lines = [f"  {name:<14}{verb.summary}" for name, verb in VERBS.items()]
  return "\n".join(["usage: python -m sbdjax VERB [--help] [--debug] ...", "", *lines])


def _dispatch(argv: list[str]) -> int:
  if not argv or argv[0] in ("-h", "--help"):
    print(_usage())
    return 0
  name, *rest = argv
  if name not in VERBS:
    raise UsageError(
      f"unknown verb {name!r}{nearest(name, VERBS)}: choose one of {', '.join(VERBS)}"
    )
  host_pages.keep()
  if not VERBS[name].measures:
    compilation_cache.turn_on()
  return importlib.import_module(VERBS[name].module).main(rest)


def _interrupt(number: int, frame: FrameType | None) -> None:
  """Ctrl-C ends a verb in good order; a second one, while it does so, ends the process at once."""
  del number, frame
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
  """Runs one verb and returns the process's exit code."""
  if argv is not None:
    return run_main(_dispatch, argv)
  signal.signal(signal.SIGINT, _interrupt)
  # Of a process of its own. Importing and tracing make many objects that live on: to look for
  # garbage among them as often as usual, and once more at the end, is a fifth of a short command.
  gc.set_threshold(10_000, 50, 100)
  code = run_main(_dispatch, sys.argv[1:])
  gc.freeze()
  return code


if __name__ == "__main__":
  sys.exit(main())
