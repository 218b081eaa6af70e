"""Errors a user can act on: one line that says what is wrong and what to change.

The command line prints the message without a traceback (unless `--debug`) and exits with
`exit_code`; every other exception is a bug and keeps its traceback.
"""


class SbdjaxError(Exception):
  """Base of all errors with a message meant for the user."""

  exit_code = 1


class UsageError(SbdjaxError):
  """A setting, flag or argument that cannot be used as given."""

  exit_code = 2


class DataError(SbdjaxError):
  """A corpus, tokenizer or prompt file that cannot be read or is empty."""


class NothingLeftError(DataError):
  """Documents of which none has tokens to learn from; others of the same corpus may have."""


class CheckpointError(SbdjaxError):
  """A checkpoint that is truncated, foreign, or does not fit what is asked of it."""


class DamagedError(CheckpointError):
  """A checkpoint that was whole once: its files are not what was written."""


class DivergedError(SbdjaxError):
  """Training met a non-finite loss."""
