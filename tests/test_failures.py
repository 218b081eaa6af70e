"""Whatever goes wrong outside of the package is one line that names the file; a bug is not."""

import errno
import lzma
import os
import subprocess
import sys
import zipfile
import zlib

import pytest

from sbdjax import failures
from sbdjax.errors import CheckpointError, DataError, UsageError


class PanicException(BaseException):
  """As pyo3 makes it: no Exception."""


class XlaRuntimeError(RuntimeError):
  pass


@pytest.mark.parametrize(
  ("error", "words"),
  [
    (ValueError("bad"), "bad (ValueError)"),
    (KeyError("size"), "'size' is missing (KeyError)"),
    (IndexError(), "IndexError"),
    (RecursionError("deep"), "nested too deep"),
    (
      MemoryError("Unable to allocate 7 TiB"),
      "more memory than there is (Unable to allocate 7 TiB)",
    ),
    (XlaRuntimeError("RESOURCE_EXHAUSTED: 8 GB"), "more memory than there is (RESOURCE"),
    (PanicException("index out of bounds"), "index out of bounds (PanicException)"),
    (OSError(errno.EIO, "Input/output error"), "Input/output error"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "invalid start byte"),
    (zipfile.BadZipFile("no zip"), "no zip"),
    (zlib.error("-3"), "-3"),
    (lzma.LZMAError("corrupt"), "corrupt"),
    (EOFError("ended"), "ended"),
    (NotImplementedError("That compression method is not supported"), "compression method"),
    (RuntimeError("File 'a' is encrypted, password required"), "encrypted"),
    (Exception("data did not match any variant"), "did not match"),
    (ValueError("x" * 9999), "..."),
    (ValueError("one\ntwo"), "one"),
  ],
)
def test_what_reading_raises_is_an_error_with_the_path(error, words):
  with pytest.raises(DataError) as found:
    with failures.reading("the/file", DataError):
      raise error
  message = str(found.value)
  assert "the/file" in message and words in message and "\n" not in message and len(message) < 500
  assert found.value.__cause__ is error


@pytest.mark.parametrize("error", [CheckpointError("x"), UsageError("y"), KeyboardInterrupt()])
def test_what_is_an_error_already_passes(error):
  with pytest.raises(type(error)) as found:
    with failures.reading("the/file", DataError):
      raise error
  assert found.value is error


@pytest.mark.parametrize(
  ("error", "code", "words"),
  [
    (OSError(errno.EACCES, "Permission denied", "a/b"), 1, "a/b: Permission denied (change its"),
    (OSError(errno.EROFS, "Read-only file system", "a/b"), 1, "a/b: Read-only"),
    (OSError(errno.ENOTDIR, "Not a directory", "a/b"), 1, "a part of that path is a file"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "a"), 1, "choose a shorter name"),
    (OSError(errno.ELOOP, "Too many levels", "a"), 1, "links lead to one another"),
    (OSError(errno.EMFILE, "Too many open files"), 1, "ulimit"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), 1, "no space left"),
    (OSError("something else"), 1, "something else"),
    (MemoryError(), 1, "not enough memory"),
    (
      XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes"),
      1,
      "not enough memory",
    ),
    (RecursionError("maximum"), 1, "nested too deep"),
    (OverflowError("Python int too large"), 1, "too large: Python int too large"),
    (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), 1, "UTF-8"),
    (PanicException("no"), 1, "a library gave up"),
    (EOFError("marker"), 1, "ends early"),
    (BrokenPipeError(), 141, ""),
    (KeyboardInterrupt(), 130, "interrupted"),
    (UsageError("a\nb" + "c" * 9999), 2, "a bccc"),
  ],
)
def test_the_rest_is_told_where_a_verb_ends(error, code, words):
  message, found = failures.explain(error)
  assert found == code and words in message and "\n" not in message and len(message) < 2100


@pytest.mark.parametrize(
  "error", [TypeError("x"), AttributeError("y"), XlaRuntimeError("INTERNAL: z")]
)
def test_bugs_have_no_message(error):
  assert failures.explain(error) == (None, 1)


def test_a_reader_that_goes_away_ends_a_verb_quietly(tmp_path):
  command = [sys.executable, "-m", "sbdjax", "methods"]
  with open(tmp_path / "err", "w+") as err:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, bufsize=0)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    err.seek(0)
    assert err.read() == ""


def test_messages_survive_a_terminal_that_knows_no_unicode():
  command = [sys.executable, "-m", "sbdjax", "gen\u00e9rate\u2713"]
  environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
  done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
  assert done.returncode == 2 and "Traceback" not in done.stderr and "unknown verb" in done.stderr
