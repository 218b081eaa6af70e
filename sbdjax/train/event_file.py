"""TensorBoard events, written at once.

`tensorboardX.SummaryWriter` leaves writing to a thread that reads the wall clock. A clock that jumps
by months, or a disk that is full, ends that thread, and the next events but ten wait for ever.
"""

from __future__ import annotations

import os
import time

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog


class EventFile:
  """A new file of scalars.

  Args:
    workdir: where it is made.
    first: the first step that is written; TensorBoard drops what earlier files have from there on.
      None: nothing is dropped.
  """

  def __init__(self, workdir: str | os.PathLike, first: int | None):
    self._writer = EventsWriter(os.path.join(workdir, "events"))
    if first is not None:
      self._writer.write_event(Event(step=first, file_version="brain.Event:2"))
      start = SessionLog(status=SessionLog.START)
      self._writer.write_event(Event(step=first, session_log=start))

  def scalar(self, name: str, value: float, step: int) -> None:
    """Adds one value."""
    event = Event(wall_time=time.time(), step=step, summary=summary.scalar(name, value))
    self._writer.write_event(event)

  def flush(self) -> None:
    """Puts everything given so far into the file."""
    self._writer.flush()

  def close(self) -> None:
    self._writer.close()
