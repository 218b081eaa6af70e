"""Reads TensorBoard event files."""

import struct

from tensorboardX.proto import event_pb2


def events(path):
  """The records of an event file: length (8 bytes), its CRC (4), an Event, its CRC (4)."""
  data, offset = path.read_bytes(), 0
  while offset < len(data):
    (length,) = struct.unpack_from("<Q", data, offset)
    yield event_pb2.Event.FromString(data[offset + 12 : offset + 12 + length])
    offset += 16 + length
