"""Sizes that programs are compiled for: rounded up, so that few programs serve prompts of any size.

What is rounded up is padding, and no result depends on it: a row ends where its own prompt and its
own limit say, and its noise is keyed by its number and positions. It does cost time and memory,
which the steps weigh against a program more.

A step is a power of two up to some size and a quarter of one above it, so that at most a fourth is
added there: 256, 320, 384, 448, 512, 640, ...
"""

from __future__ import annotations

# A prompt is run once, and up to so many tokens that takes milliseconds where compiling takes
# seconds: 5 programs serve all prompts up to here, with up to twice the forward. Beyond, the prompt
# is what one waits for, and attention grows with its square.
_SHORT = 256

# The shortest prompts and limits, all of one size.
_SMALLEST = 16

# What a turn adds to a conversation is mostly shorter. So many tokens still read a cache as the
# forwards of a canvas do, on a CPU (`kernels.xla.MAX_WINDOW`).
_WINDOW = 64

# Rows cost something in every forward, but most lists are short or cut into batches of a size that
# the user gave, which are not rounded up. 16 is what `generate` decodes together by itself.
_FEW_ROWS = 16


def round_up(size: int, smallest: int, powers_to: int) -> int:
  """The smallest step that is no less than `size`; 0 stays 0.

  Args:
    size: at least 0.
    smallest: the first step, a power of two.
    powers_to: steps are powers of two up to here, and quarters of them above; a power of two.
  """
  if size == 0:
    return 0
  power = 1 << (max(size, smallest) - 1).bit_length()
  step = power if power <= powers_to else power // 8
  return -(-size // step) * step


def rows(count: int) -> int:
  """Rows for `count` prompts that are decoded together."""
  return round_up(count, 1, _FEW_ROWS)


def width(longest: int, limit: int, context: int, whole_canvas: bool) -> int:
  """Columns for prompts of up to `longest` tokens.

  Args:
    longest: tokens of the longest prompt.
    limit: the most tokens that follow it.
    context: tokens the model is meant for. Prompts are not padded beyond it, the limit included.
    whole_canvas: every forward runs the padding again, so that steps are quarters from the
      beginning; see `Method.whole_canvas`.
  """
  rounded, room = (
    round_up(longest, _SMALLEST, _SMALLEST if whole_canvas else _SHORT),
    context - limit,
  )
  return rounded if rounded <= room else _roundest(longest, room)


def _roundest(low: int, high: int) -> int:
  """Of the numbers from `low` to `high` the multiple of the largest power of two; `low` if none.

  So widths are few also where prompt and limit nearly fill the context.
  """
  found, step = low, 1
  while low <= high // step * step:
    found, step = high // step * step, 2 * step
  return found


def limit(limit: int, width: int, context: int) -> int:
  """Tokens that buffers hold after prompts of `width` columns, for rows that end after `limit`.

  Not for methods that run the whole canvas. Others only keep memory for it.
  """
  return min(round_up(limit, _SMALLEST, _SHORT), max(limit, context - width))


def rest(longest: int) -> int:
  """Columns for up to `longest` tokens after the part of a prompt that is kept, which are run once."""
  return round_up(longest, _WINDOW, _SHORT)


def text(longest: int, context: int) -> int:
  """Columns for texts of up to `longest` tokens that are run once, and nothing else is."""
  return width(longest, 0, context, whole_canvas=True)
