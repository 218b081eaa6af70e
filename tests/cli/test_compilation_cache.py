"""The verbs' persistent cache: where it is, who may say otherwise, and that a second command reads it."""

import os
import pathlib
import subprocess
import sys

import pytest

from sbdjax.cli import compilation_cache

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIR = "JAX_COMPILATION_CACHE_DIR"


@pytest.fixture
def no_jax(monkeypatch):
  """As in a process that has not imported JAX yet."""
  monkeypatch.setattr(compilation_cache.sys, "modules", {})


@pytest.mark.parametrize(
  ("environment", "platform", "expected"),
  [
    ({}, "linux", "/home/me/.cache/sbdjax/jax"),
    ({"XDG_CACHE_HOME": "/scratch"}, "linux", "/scratch/sbdjax/jax"),
    ({"XDG_CACHE_HOME": ""}, "linux", "/home/me/.cache/sbdjax/jax"),
    ({}, "darwin", "/home/me/Library/Caches/sbdjax/jax"),
    ({"LOCALAPPDATA": "/local"}, "win32", "/local/sbdjax/jax"),
  ],
)
def test_it_is_in_the_users_cache_folder(monkeypatch, environment, platform, expected):
  monkeypatch.setattr(pathlib.Path, "home", lambda: pathlib.Path("/home/me"))
  assert compilation_cache.folder(environment, platform) == pathlib.Path(expected)


def test_small_programs_are_kept_and_the_folder_is_bounded(no_jax, tmp_path):
  environment = {"XDG_CACHE_HOME": str(tmp_path)}
  compilation_cache.turn_on(environment)
  assert environment.pop("XDG_CACHE_HOME") and environment == {
    DIR: str(tmp_path / "sbdjax" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(2 * 2**30),
  }
  assert pathlib.Path(environment[DIR]).is_dir()


@pytest.mark.parametrize(
  "chosen", [{DIR: "/elsewhere"}, {DIR: ""}, {"JAX_ENABLE_COMPILATION_CACHE": "0"}]
)
def test_what_the_user_says_wins(no_jax, tmp_path, chosen):
  environment = {"XDG_CACHE_HOME": str(tmp_path), **chosen}
  before = dict(environment)
  compilation_cache.turn_on(environment)
  assert environment == before and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_or_written_is_none(no_jax, tmp_path, monkeypatch):
  (tmp_path / "file").write_text("")
  for base in ("file", "new"):
    monkeypatch.setattr(compilation_cache.os, "access", lambda *_: False)
    environment = {"XDG_CACHE_HOME": str(tmp_path / base)}
    compilation_cache.turn_on(environment)
    assert DIR not in environment


def test_settings_of_a_running_program_stay(tmp_path):
  assert "jax" in sys.modules
  environment = {"XDG_CACHE_HOME": str(tmp_path)}
  compilation_cache.turn_on(environment)
  assert DIR not in environment


@pytest.mark.long
def test_a_second_command_compiles_nothing(tmp_path):
  """Nor does it write anything to the cache; and importing the library sets up none."""
  environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
  environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
  environment |= {"JAX_LOG_COMPILES": "1", "PYTHONPATH": str(ROOT)}

  def run(*command):
    return subprocess.run(
      [sys.executable, *command],
      env=environment, cwd=tmp_path, check=True, text=True, capture_output=True, timeout=300,
    )  # fmt: skip

  kept = lambda: sorted(p.name for p in tmp_path.rglob("*-cache"))
  run(
    "-c",
    "import sbdjax; sbdjax.make_lm; import jax; assert not jax.config.jax_compilation_cache_dir",
  )
  assert kept() == []
  verb = ["-m", "sbdjax", "generate", "--checkpoint=stories260K", "--decoder.max_tokens=4"]
  first = run(*verb, "--prompt=Once upon")
  programs = kept()
  assert any(name.startswith("jit_run-") for name in programs)
  hits = lambda found: found.stderr.count("Persistent compilation cache hit")
  assert hits(first) == 0
  second = run(*verb, "--prompt=Once upon a time")
  assert kept() == programs and hits(second) >= len(programs)
