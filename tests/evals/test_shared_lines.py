"""Records of several processes: all are seen, none is lost, and the last one joins them."""

import json

from sbdjax.evals.shared_lines import SharedLines
from sbdjax.share import Share


def lines_in(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_parts_are_read_by_all_and_joined(tmp_path):
  path = tmp_path / "points.jsonl"
  SharedLines(path).append({"n": 0})
  one, two = (SharedLines(path, Share(i, 2)) for i in range(2))
  one.append({"n": 1})
  two.append({"n": 2})
  assert lines_in(path) == [{"n": 0}] and one.records == [{"n": 0}, {"n": 1}]
  # Of an earlier job of more processes, one of which was killed while it wrote.
  (tmp_path / "points.part-3-of-4.jsonl").write_bytes(b'{"n": 3}\n{"n":')
  (tmp_path / "other.part-0-of-2.jsonl").write_text("not ours")
  one.read()
  assert sorted(r["n"] for r in one.records) == [0, 1, 2, 3]
  SharedLines(path).join(last=[{"n": 2}, {"n": 1}])
  assert lines_in(path) == [{"n": 0}, {"n": 3}, {"n": 2}, {"n": 1}]
  assert {p.name for p in tmp_path.iterdir()} == {"points.jsonl", "other.part-0-of-2.jsonl"}
  two.append({"n": 4})
  assert [r["n"] for r in SharedLines(path, Share(0, 3)).records] == [0, 3, 2, 1, 4]


def test_joining_twice_at_once_loses_and_doubles_nothing(tmp_path, monkeypatch):
  """The second starts before the first has removed the parts, and ends after."""
  path = tmp_path / "points.jsonl"
  for i in range(2):
    SharedLines(path, Share(i, 2)).append({"n": i})
  first, second = SharedLines(path), SharedLines(path)
  read = second.read

  def slow():
    first.join()
    read()

  monkeypatch.setattr(second, "read", slow)
  second.join()
  assert lines_in(path) == [{"n": 0}, {"n": 1}]
