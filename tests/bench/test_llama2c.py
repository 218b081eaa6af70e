"""llama2.c as a program of its own: files it can read, and what is made of what it prints."""

import pathlib

import numpy as np
import pytest

from sbdjax.bench import llama2c
from sbdjax.bench.peers import Turn
from sbdjax.errors import UsageError
from sbdjax.interop import llama2c as checkpoint
from tests import models

FAKE = pathlib.Path(__file__).with_name("fake_run.c")
needs_compiler = pytest.mark.skipif(not llama2c.find_compiler(), reason="no C compiler")


def test_a_full_run():
  turn = llama2c.read_turn("7 0 12 \n", "achieved tok/s: 50.000000\n", start=1, steps=3)
  assert turn == Turn([7, 0, 12], 2, 2, 0.04)  # the clock starts after the first


def test_a_run_that_ends_early_also_made_the_token_that_ended_it():
  turn = llama2c.read_turn("7 0 \n", "achieved tok/s: 50.000000\n", start=5, steps=9)
  assert turn == Turn([7, 0, 5], 2, 2, 0.04)


@pytest.mark.parametrize(
  ("printed", "told", "words"),
  [
    ("\n", "", "choose another with --start"),
    ("1 2 3 \n", "something else", "told no speed"),
    ("1 2 3 \n", "achieved tok/s: inf", "raise --max_tokens"),
  ],
)
def test_runs_without_a_speed_are_told(printed, told, words):
  with pytest.raises(UsageError, match=words):
    llama2c.read_turn(printed, told, start=5, steps=3)


def test_row_1_is_where_texts_start_and_tokens_never_predicted_are_left_out():
  config = models.config(mask_id=4, unused_rows=2)
  assert llama2c.rows_of(config, 7).tolist() == [0, 7, 1, 2, 3, 5, 6, 8, 9, 10]
  assert llama2c.rows_of(config, 1).tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
  return llama2c.compile_source(FAKE, llama2c.find_compiler(), tmp_path_factory.mktemp("fake"))


@needs_compiler
@pytest.mark.parametrize(("d_ff", "tokens"), [(20, [1, 2, 3, 5, 6]), (24, [1, 2, 3, 7])])
def test_it_reads_our_files_and_prints_our_tokens(binary, tmp_path, d_ff, tokens):
  lm = models.lm_of(mask_id=4, d_ff=d_ff, tie_embeddings=False)
  params = models.random_params(lm)
  program = llama2c.prepare(binary, tmp_path, lm.config, params, start=7, positions=5)
  for threads in (1, 3):
    turn = llama2c.run(program, 5, threads)
    timed = len(tokens) - 1
    assert turn == Turn(tokens, timed, timed, pytest.approx(timed / (100 * threads)))
  config, theirs = checkpoint.read(program.checkpoint)
  assert (config.vocab_size, config.max_seq_len) == (12, 5)
  rows = [0, 7, 1, 2, 3, 5, 6, 8, 9, 10, 11, 12]
  for name in ("embedding", "head"):
    np.testing.assert_array_equal(theirs[name], np.asarray(params[name])[rows])


@needs_compiler
def test_a_program_that_fails_is_told(binary, tmp_path):
  lm = models.lm_of()
  program = llama2c.prepare(binary, tmp_path, lm.config, models.random_params(lm), 1, positions=4)
  with pytest.raises(UsageError, match=r"llama2.c failed \(2\)"):
    llama2c.run(program, 5, 1)  # longer than its cache


@needs_compiler
def test_source_that_does_not_compile_is_told_in_a_line(tmp_path):
  (tmp_path / "run.c").write_text("int main() { return nothing; }\n")
  source = llama2c.find_source(str(tmp_path))
  with pytest.raises(UsageError, match="cannot compile .*run.c: .*error") as error:
    llama2c.compile_source(source, llama2c.find_compiler(), tmp_path)
  assert "\n" not in str(error.value)
  found = llama2c.versions(source, llama2c.find_compiler())
  assert "-Ofast" in found["flags"] and found["compiler"] and len(found["run.c sha256"]) == 64


def test_a_source_that_is_not_there_is_told(tmp_path):
  with pytest.raises(UsageError, match="--llama2c=.*run.c"):
    llama2c.find_source(str(tmp_path))
