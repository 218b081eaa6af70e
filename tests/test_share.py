"""Shares: every thing belongs to exactly one process, and bad ones are refused in one line."""

import pytest

from sbdjax import share
from sbdjax.errors import UsageError
from sbdjax.share import Share


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_every_item_is_in_one_share(count):
  items = list("abcdefghij")
  shares = [Share(i, count) for i in range(count)]
  assert sorted(x for each in shares for x in each.mine(items)) == items
  for each in shares:
    assert each.mine(items) == [x for i, x in enumerate(items) if each.has(i)]


def test_only_a_part_has_a_name():
  assert share.WHOLE.name == "" and share.parse("1/4") == Share(1, 4)
  assert Share(1, 4).name == "1/4"


@pytest.mark.parametrize("text", ["2/2", "-1/2", "0/0", "a/b", "1", "", "0/1/2"])
def test_no_share(text):
  with pytest.raises(UsageError, match="--shard=.*write I/N"):
    share.parse(text)


def test_the_environment_says_which():
  assert share.of_process({}) == share.WHOLE
  assert share.of_process({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "3"}) == Share(1, 3)
  with pytest.raises(UsageError, match="JAX_PROCESS_ID/JAX_NUM_PROCESSES=3/3"):
    share.of_process({"JAX_PROCESS_ID": "3", "JAX_NUM_PROCESSES": "3"})
  with pytest.raises(UsageError, match="both"):
    share.of_process({"JAX_NUM_PROCESSES": "3"})
