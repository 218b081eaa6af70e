"""The live view: nothing moves but what is new."""

import io

import jax
import pytest
from rich.cells import cell_len
from rich.console import Console

from sbdjax.cli import live
from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.decode import SBD, Blocks, Categorical, EBEntropy, FreeDave, Limits
from sbdjax.decode.generate import Result
from sbdjax.decode.stream import Streamer
from tests import models

LM = models.lm_of(vocab_size=513, mask_id=512)
PARAMS = models.random_params(LM)
PROMPTS = [[1, 403, 407], [1, 420]]
TOKENIZER = load_tokenizer("tok512", mask_id=512)
CELLS = live.CellTexts(TOKENIZER, 512, (1, 2))
BLOCKS = SBD(8, EBEntropy(9.0), Categorical(0.7))


def streamer(method, max_tokens=21, eos_ids=()):
  return Streamer(LM, Limits(max_tokens, eos_ids), method, PARAMS, PROMPTS)


def lines_of(frame, width=76):
  console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
  console.print(live.draw(frame, CELLS, "title", width, 4))
  return console.file.getvalue().splitlines()


def test_nothing_moves_when_masks_become_tokens():
  frames = list(streamer(BLOCKS).frames(0, jax.random.key(0)))
  drawn = [lines_of(frame) for frame in frames]
  assert len({len(lines) for lines in drawn}) == 1
  assert {cell_len(line) for lines in drawn for line in lines} == {76}
  for frame, lines in zip(frames, drawn, strict=True):
    for row in (lines[-2],):
      cells = [row[2 + live.CELL * i : 1 + live.CELL * (i + 1)] for i in range(8)]
      assert cells == [CELLS.of(token) for token in frame.canvas]


def test_cells():
  assert CELLS.of(512) == "▒" * (live.CELL - 1)
  assert CELLS.of(1).strip() == "<end>"
  bytes_of = lambda text: [b + 3 for b in text.encode()]  # tok512 has a token a byte
  assert CELLS.of(bytes_of("\n")[0]).strip() == "↵"
  assert CELLS.of(bytes_of("é")[0]).strip() == "◌"  # half a character
  assert CELLS.of(bytes_of("\x1b")[0]).strip() == "·"  # would steer the terminal
  assert all(cell_len(CELLS.of(token)) == live.CELL - 1 for token in range(513))


def result(prompt, tokens, steps):
  nfe = max(steps) + 1
  return Result(prompt, tokens, len(tokens), nfe, 1, nfe, 0, 0, steps, "length", 1.0, 1)


def test_bytes_of_one_character_become_that_character():
  tokens = [b + 3 for b in "né".encode()]
  text = live.styled_text(TOKENIZER, result([1], tokens, [0, 1, 2]), 3, fresh_step=2)
  assert text.plain == "né"
  (span,) = [s for s in text.spans if s.style == live._NEW]
  assert text.plain[span.start : span.end] == "é"


def test_play_leaves_the_whole_text_and_what_it_cost(capsys):
  console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
  frames = streamer(BLOCKS, eos_ids=(1, 2)).frames(1, jax.random.key(0))
  last = live.play(frames, CELLS, "a title", console, 0.0)
  after = console.file.getvalue().rsplit("\x1b[2K", 1)[-1]
  assert "a title" in after and f"{last.nfe} forwards" in after and "▒" not in after
  assert "▒" in console.file.getvalue()


FREEDAVE = FreeDave(blocks=Blocks(4, "block_causal"), draft_steps=4, eager=True)


@pytest.mark.long
def test_drafts_are_shown_accepted_or_rejected():
  frames = list(streamer(FREEDAVE, max_tokens=10).frames(1, jax.random.key(0)))
  assert {len(f.canvas) for f in frames} == {8} and len({len(lines_of(f)) for f in frames}) == 1
  seen = {live._NEW: 0, live._REJECTED: 0}
  for before, frame in zip(frames, frames[1:], strict=False):
    drafted = frame.result.drafted - before.result.drafted
    accepted = frame.result.accepted - before.result.accepted
    both = list(zip(frame.canvas, frame.drafts, strict=True))
    assert sum(draft >= 0 for _, draft in both) == drafted
    assert sum(draft >= 0 and draft == token for token, draft in both) == accepted
    cells = [
      cell for column in live.draw_canvas(frame, CELLS, 76).columns for cell in column._cells
    ]
    styles = [str(cell.style) for cell in cells]
    assert styles.count(live._REJECTED) == sum(draft >= 0 and token == 512 for token, draft in both)
    assert styles.count(live._NEW) == sum(frame.fresh) >= accepted
    for style in seen:
      seen[style] += styles.count(style)
  assert min(seen.values()) > 0
  assert f"drafts {frames[-1].result.accepted}/" in live.counters(frames[-1].result)
