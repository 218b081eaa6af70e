"""The live view: the frames are the sampler's own steps, and nothing moves but what is new."""

import io

import jax
import pytest
from rich.cells import cell_len
from rich.console import Console
from sbdjax.cli.decoders import DecoderConfig

from sbdjax.cli import decoders, live
from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.decode.generate import Decoder, Result
from tests import models

LM = models.lm_of(vocab_size=513, mask_id=512)
PARAMS = models.random_params(LM)
PROMPTS = [[1, 403, 407], [1, 420]]
TOKENIZER = load_tokenizer("tok512", mask_id=512)
CELLS = live.CellTexts(TOKENIZER, 512, (1, 2))
SBD = DecoderConfig("sbd", max_tokens=21, block_size=8, gamma=9.0, temperature=0.7)


def streamer(config, eos_ids=(1, 2)):
  sampler = decoders.make_sampler(LM, config, eos_ids)
  return live.make_streamer(sampler, config, PARAMS, PROMPTS)


@pytest.mark.parametrize(
  "config",
  [
    pytest.param(SBD, id="sbd", marks=pytest.mark.long),
    pytest.param(DecoderConfig("ar", max_tokens=9), id="ar"),
    pytest.param(
      DecoderConfig("jacobi_multiblock", max_tokens=9, block_size=4),
      id="jacobi",
      marks=pytest.mark.long,
    ),
  ],
)
def test_frames_end_where_the_plain_driver_ends(config):
  key = jax.random.key(3)
  build = lambda n: decoders.make_sampler(LM, config, (1, 2), n)
  expected = list(Decoder(build).generate(PARAMS, PROMPTS, key, decoders.numbers_of(config)))
  found = streamer(config)
  for i, want in enumerate(expected):
    frames = list(found.frames(i, key))
    last = frames[-1].result
    assert (last.tokens, last.nfe, last.reveal_step, last.finish) == (
      want.tokens, want.nfe, want.reveal_step, want.finish
    )  # fmt: skip
    # One frame for the prompt, then one a forward.
    assert [f.result.nfe for f in frames] == list(range(want.nfe + 1))
    assert [f.done for f in frames] == [False] * want.nfe + [True]


def test_each_frame_shows_what_its_forward_revealed():
  frames = list(streamer(SBD, eos_ids=()).frames(0, jax.random.key(0)))
  assert frames[0].canvas == [512] * 8 and not any(frames[0].fresh)
  before = frames[0]
  for frame in frames[1:]:
    assert any(frame.fresh)
    same_block = frame.committed == before.committed
    old = before.canvas if same_block else [512] * 8
    newly = [a == 512 and b != 512 for a, b in zip(old, frame.canvas, strict=True)]
    assert newly == frame.fresh
    before = frame
  assert {f.committed for f in frames} == {0, 8, 16}


def lines_of(frame, width=76):
  console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
  console.print(live.draw(frame, CELLS, "title", width, 4))
  return console.file.getvalue().splitlines()


def test_nothing_moves_when_masks_become_tokens():
  frames = list(streamer(SBD, eos_ids=()).frames(0, jax.random.key(0)))
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
  assert live.text_after(TOKENIZER, [1, *tokens[:2]], tokens[2:]) == "é"
  (span,) = [s for s in text.spans if s.style == live._NEW]
  assert text.plain[span.start : span.end] == "é"


def test_play_leaves_the_whole_text_and_what_it_cost(capsys):
  console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
  frames = streamer(SBD).frames(1, jax.random.key(0))
  last = live.play(frames, CELLS, "a title", console, 0.0)
  after = console.file.getvalue().rsplit("\x1b[2K", 1)[-1]
  assert "a title" in after and f"{last.nfe} forwards" in after and "▒" not in after
  assert "▒" in console.file.getvalue()


FREEDAVE = DecoderConfig(
  "freedave", max_tokens=10, block_size=4, attention="block_causal", draft_steps=4, eager=True
)


@pytest.mark.long
def test_drafts_are_shown_accepted_or_rejected():
  frames = list(streamer(FREEDAVE, eos_ids=()).frames(1, jax.random.key(0)))
  assert {len(f.canvas) for f in frames} == {8} and len({len(lines_of(f)) for f in frames}) == 1
  seen = {live._NEW: 0, live._REJECTED: 0}
  for before, frame in zip(frames, frames[1:], strict=False):
    drafted = frame.result.drafted - before.result.drafted
    accepted = frame.result.accepted - before.result.accepted
    both = list(zip(frame.canvas, frame.tried, strict=True))
    assert sum(tried >= 0 for _, tried in both) == drafted
    assert sum(tried >= 0 and tried == token for token, tried in both) == accepted
    cells = [
      cell for column in live.draw_canvas(frame, CELLS, 76).columns for cell in column._cells
    ]
    styles = [str(cell.style) for cell in cells]
    assert styles.count(live._REJECTED) == sum(tried >= 0 and token == 512 for token, tried in both)
    assert styles.count(live._NEW) == sum(frame.fresh) >= accepted
    for style in seen:
      seen[style] += styles.count(style)
  assert min(seen.values()) > 0
  assert f"drafts {frames[-1].result.accepted}/" in live.counters(frames[-1].result)
