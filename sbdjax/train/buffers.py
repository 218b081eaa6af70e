"""Which arrays are alive at the worst point of a compiled program, and what made them.

The compiler tells where it has put every array (the buffer assignment) and in which order it runs the
instructions; from both follows when each is alive. Both are protocol buffers of openxla/xla
(xla/service/hlo.proto, xla/xla_data.proto), of which a few fields are read here: arrays that share a
place at one time, as those that are updated in place, count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

# Largest arrays that are told.
COUNT = 8
_CONTROL_FLOW = (b"while", b"conditional", b"call", b"async-start")
# xla_data.proto, PrimitiveType.
_TYPES = {
  1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
  10: "f16", 11: "f32", 12: "f64", 16: "bf16",
}  # fmt: skip


class Buffer(NamedTuple):
  """An array, or several with one shape that were made alike.

  Attributes:
    bytes: of all of them.
    arrays: how many.
    shape: of one, such as "bf16[32,1,65536,4096]".
    made_by: the operation of the program as written, else the compiler's instruction.
  """

  bytes: int
  arrays: int
  shape: str
  made_by: str


class _Instruction(NamedTuple):
  name: str
  opcode: bytes
  shape: bytes  # ShapeProto, for `_shape`
  op_name: str
  id: int
  operands: tuple[int, ...]
  called: tuple[int, ...]


class _Slice(NamedTuple):
  """A place in memory that a value takes from `start` to `end`, in steps of the schedule."""

  place: tuple[int, int]  # allocation, offset
  size: int
  start: int
  end: int
  shape: str
  made: _Instruction


def at_peak(compiled: Any, count: int = COUNT) -> tuple[Buffer, ...]:
  """The largest temporary arrays when most of them are alive, largest first.

  Args:
    compiled: a `jax.stages.Compiled`.
    count: how many at most.

  Returns:
    Nothing where the compiler does not tell: some compile-only clients keep the assignment.
  """
  memory = compiled.memory_analysis()
  assignment = getattr(memory, "serialized_buffer_assignment_proto", b"")
  modules = compiled.runtime_executable().hlo_modules()
  if not assignment or len(modules) != 1:
    return ()
  return largest(_slices(assignment, modules[0].as_serialized_hlo_module_proto()), count)


def largest(slices: list[_Slice], count: int) -> tuple[Buffer, ...]:
  """The largest of the slices that are alive at the worst step, those made alike together."""
  alive = _at_worst(slices)
  groups: dict[tuple[str, str], list[int]] = {}
  for each in alive:
    key = (each.shape, each.made.op_name or each.made.name)
    groups.setdefault(key, []).append(each.size)
  found = [Buffer(sum(s), len(s), shape, made) for (shape, made), s in groups.items()]
  return tuple(sorted(found, key=lambda b: -b.bytes)[:count])


def _at_worst(slices: list[_Slice]) -> list[_Slice]:
  """Those alive at the step at which most bytes are; of those at one place, the largest."""
  by_start = sorted(slices, key=lambda s: s.start)
  best: list[_Slice] = []
  alive: list[_Slice] = []
  best_bytes = 0
  for number, each in enumerate(by_start):
    alive = [s for s in alive if s.end >= each.start] + [each]
    if number + 1 < len(by_start) and by_start[number + 1].start == each.start:
      continue
    places: dict[tuple[int, int], _Slice] = {}
    for s in alive:
      if s.place not in places or places[s.place].size < s.size:
        places[s.place] = s
    total = sum(s.size for s in places.values())
    if total > best_bytes:
      best, best_bytes = list(places.values()), total
  return best


def _slices(assignment: bytes, module: bytes) -> list[_Slice]:
  computations, entry = _module(module)
  order = _schedule(computations, entry)
  instructions = {i.id: i for body in computations.values() for i in body}
  last_use: dict[int, int] = dict(order)
  for each in instructions.values():
    for operand in each.operands:
      if operand in last_use and each.id in order:
        last_use[operand] = max(last_use[operand], order[each.id])
  makers: dict[int, int] = {}  # logical buffer -> instruction
  indices: dict[int, list[int]] = {}  # and which of its results, where they are several
  aliases: dict[int, set[int]] = {}
  allocations = []
  for field, value in _fields(assignment):
    if field == 1:  # LogicalBufferProto: id, size, defined_at
      about = dict(_fields(value))
      makers[about.get(1, 0)] = dict(_fields(about[3])).get(4, 0)
      indices[about.get(1, 0)] = _numbers(v for f, v in _fields(about[3]) if f == 3)
    elif field == 2:  # BufferAlias: source_buffer_id, location
      about = dict(_fields(value))
      aliases.setdefault(about.get(1, 0), set()).add(dict(_fields(about[2])).get(4, 0))
    elif field == 3:
      allocations.append(list(_fields(value)))
  found = []
  for allocation in allocations:
    about = {field: value for field, value in allocation if field != 9}
    # Thread-local, a parameter, a result, a constant.
    if any(about.get(field) for field in (3, 5, 7, 12)):
      continue
    for field, value in allocation:
      if field != 9:  # Assigned: logical_buffer_id, offset, size
        continue
      assigned = dict(_fields(value))
      logical = assigned.get(1, 0)
      made = instructions.get(makers.get(logical, -1))
      where = {makers.get(logical, -1)} | aliases.get(logical, set())
      times = [order[i] for i in where if i in order]
      if made is None or not times:
        continue
      end = max(last_use[i] for i in where if i in order)
      place = (about.get(1, 0), assigned.get(2, 0))
      shape = _shape(made.shape, indices[logical])
      found.append(_Slice(place, assigned.get(3, 0), min(times), end, shape, made))
  return found


def _module(data: bytes) -> tuple[dict[int, list[_Instruction]], int]:
  """Instructions of every computation in the order in which they run, and the first computation."""
  computations, entry, sequences = {}, 0, {}
  for field, value in _fields(data):
    if field == 3:
      body = [_instruction(v) for f, v in _fields(value) if f == 2]
      ids = [v for f, v in _fields(value) if f == 5]
      computations[ids[0] if ids else 0] = body
    elif field == 6:
      entry = value
    elif field == 7:  # HloScheduleProto: map of computation -> instruction ids
      for _, pair in _fields(value):
        about = dict(_fields(pair))
        sequences[about.get(1, 0)] = _numbers(v for f, v in _fields(about.get(2, b"")) if f == 1)
  for name, sequence in sequences.items():
    place = {each: n for n, each in enumerate(sequence)}
    if name in computations:
      computations[name].sort(key=lambda i: place.get(i.id, -1))
  return computations, entry


def _instruction(data: bytes) -> _Instruction:
  name, opcode, shape, op_name, id_ = "", b"", b"", "", 0
  operands: list[Any] = []
  called: list[Any] = []
  for field, value in _fields(data):
    if field == 1:
      name = value.decode()
    elif field == 2:
      opcode = value
    elif field == 3:
      shape = value
    elif field == 7:
      op_name = dict(_fields(value)).get(2, b"").decode()
    elif field == 35:
      id_ = value
    elif field == 36:
      operands.append(value)
    elif field == 38:
      called.append(value)
  return _Instruction(
    name, opcode, shape, op_name, id_, tuple(_numbers(operands)), tuple(_numbers(called))
  )


def _schedule(computations: dict[int, list[_Instruction]], entry: int) -> dict[int, int]:
  """Instruction -> its step; what a loop runs comes before the loop itself is done."""
  order: dict[int, int] = {}

  def visit(name: int) -> None:
    for each in computations.get(name, ()):
      if each.opcode in _CONTROL_FLOW:
        for inner in each.called:
          visit(inner)
      order[each.id] = len(order)

  visit(entry)
  return order


def _shape(data: bytes, index: list[int]) -> str:
  """ShapeProto: element_type, dimensions, tuple_shapes; of a tuple the part at `index`."""
  about = list(_fields(data))
  if index:
    parts = [v for f, v in about if f == 4]
    return _shape(parts[index[0]], index[1:]) if index[0] < len(parts) else "?[]"
  kind = next((v for f, v in about if f == 2), 0)
  sizes = _numbers(v for f, v in about if f == 3)
  return f"{_TYPES.get(kind, '?')}[{','.join(map(str, sizes))}]"


def _numbers(values: Iterable[Any]) -> list[int]:
  """Whole numbers of a repeated field, packed or not."""
  found: list[int] = []
  for value in values:
    if isinstance(value, int):
      found.append(value)
      continue
    at = 0
    while at < len(value):
      number, at = _varint(value, at)
      found.append(number)
  return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
  number = shift = 0
  while True:
    byte = data[at]
    at += 1
    number |= (byte & 127) << shift
    shift += 7
    if byte < 128:
      return number, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
  """(number, value) of the fields of a message: whole numbers, and bytes for all else."""
  at = 0
  while at < len(data):
    key, at = _varint(data, at)
    kind = key & 7
    if kind == 0:
      value, at = _varint(data, at)
      yield key >> 3, value
      continue
    if kind == 2:
      size, at = _varint(data, at)
    else:
      size = {1: 8, 5: 4}[kind]
    yield key >> 3, data[at : at + size]
    at += size
