"""TensorBoard events, written at once.

`tensorboardX.SummaryWriter` leaves writing to a thread that reads the wall clock. A clock that jumps
by months, or a disk that is full, ends that thread, and the next events but ten wait for ever.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from typing import Any

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from sbdjax import remote


class EventFile:
  """A new file of scalars, texts and pictures.

  Args:
    workdir: where it is made.
    first: the first step that is written; TensorBoard drops what earlier files have from there on.
      None: nothing is dropped.
  """

  def __init__(self, workdir: str | os.PathLike, first: int | None):
    self._workdir, self._local = workdir, None
    if remote.is_remote(workdir):
      self._local = tempfile.TemporaryDirectory(prefix="sbdjax-events-")
      workdir = self._local.name
    self._writer = EventsWriter(os.path.join(workdir, "events"))
    if first is not None:
      self._writer.write_event(Event(step=first, file_version="brain.Event:2"))
      start = SessionLog(status=SessionLog.START)
      self._writer.write_event(Event(step=first, session_log=start))

  def scalar(self, name: str, value: float, step: int) -> None:
    """Adds one value."""
    self._write(summary.scalar(name, value), step)

  def text(self, name: str, text: str, step: int) -> None:
    """Adds a text; TensorBoard reads it as Markdown, so it stands in an indented block."""
    self._write(summary.text(name, "\n".join(f"    {line}" for line in text.split("\n"))), step)

  def picture(self, name: str, png: bytes, step: int) -> None:
    """Adds the bytes of a PNG file."""
    width, height = struct.unpack(">II", png[16:24])  # of its first chunk
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
    self._write(Summary(value=[Summary.Value(tag=name, image=image)]), step)

  def _write(self, content: Any, step: int) -> None:
    self._writer.write_event(Event(wall_time=time.time(), step=step, summary=content))

  def flush(self) -> None:
    """Puts everything given so far into the file."""
    self._writer.flush()
    self._upload()

  def close(self) -> None:
    self._writer.close()
    self._upload()
    if self._local is not None:
      self._local.cleanup()

  def _upload(self) -> None:
    """The file whole, where it is for an object store."""
    if self._local is not None:
      remote.upload(self._local.name, remote.path(self._workdir))
