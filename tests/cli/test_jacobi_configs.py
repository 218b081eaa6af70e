"""The configs of Jacobi Forcing: every stage and every point of theirs can be built."""

import pytest

from sbdjax.cli import rounds, sweep, trajectories
from sbdjax.cli.common import load_config
from sbdjax.errors import UsageError
from sbdjax.train.settings import parse_settings, schema


def planned(name, flags, workdir):
  path = f"preset:{name}"
  sections = lambda c: {**schema(c), **trajectories.SECTIONS}
  return rounds.plan(load_config(path, flags, sections), rounds.read(path), workdir, flags)


@pytest.mark.parametrize("name", ["stories_jacobi", "qwen25_coder_7b_jacobi"])
def test_blocks_grow_from_round_to_round_and_fit_the_rows(name, tmp_path):
  first, second = planned(name, {}, tmp_path)
  assert (first.collect.block_size, second.collect.block_size) == (16, 32)
  assert second.collect.checkpoint == second.config.init.checkpoint == str(tmp_path / "round1")
  for each in (first, second):
    settings = parse_settings(each.config)
    assert settings.loss_name == "jacobi" and settings.data.path == str(each.trajectories)
    # Rows have room for the longest prompt and every block.
    decoded = each.collect.num_blocks * each.collect.block_size
    assert each.collect.longest + decoded <= settings.data.seq_len
  assert (first.config.data.noise.window, second.config.data.noise.window) == (16, 8)


def test_the_command_line_holds_for_every_round(tmp_path):
  flags = {"train.steps": "7", "optim.warmup_steps": "1", "data.noise.window": "4"}
  for each in planned("stories_jacobi", flags, tmp_path):
    assert (each.config.train.steps, each.config.data.noise.window) == (7, 4)


@pytest.mark.parametrize("name", ["data.path", "collect.checkpoint"])
def test_what_rounds_decide_is_not_set(tmp_path, name):
  with pytest.raises(UsageError, match=f"config.{name} has no effect in rounds"):
    planned("stories_jacobi", {name: "runs/x"}, tmp_path)


def test_one_round_on_trajectories_that_are_there():
  path = "preset:stories_jacobi:once"
  assert rounds.read(path) is None
  settings = parse_settings(load_config(path, {"data.path": "there"}, schema))
  assert settings.data.path == "there" and settings.data.source == "trajectories"


def test_the_search_names_what_its_points_have():
  path = "preset:stories_jacobi_search"
  x, y, z = sweep.read_surface(path)
  assert all(x in entry and y in entry for entry in sweep.read_grid(path))
  assert z == "tokens_per_second"
