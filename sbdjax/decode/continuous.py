"""Many prompts at once: a row that ends makes room for the next prompt, inside the running loop.

A batch waits for its slowest row. Here a program holds a fixed number of *slots*, each with the
state of one row; when some have ended, their results go to the host and the next prompts take their
places, while the others go on. Every sampler can do this: its state is rows side by side, found
by `slots`, and a row depends on nothing but its own.

Prompts are grouped into *buckets* of one padded width and one limit (`buckets`), so that a bucket is
one program of fixed sizes, and memory is bounded by them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from sbdjax.decode.base import Limits
from sbdjax.decode.generate import Result
from sbdjax.decode.method import Method
from sbdjax.decode.programs import Shared
from sbdjax.decode.requests import Request
from sbdjax.decode.stops import Stops
from sbdjax.lm import LM
from sbdjax.sigma_lm import SigmaLM


@dataclasses.dataclass
class Counts:
  """What a run has done so far; a row-forward is one forward of one slot.

  Attributes:
    prompts: prompts that ended.
    forwards: network forwards of all slots together.
    row_forwards: those times the slots of each.
    useful_row_forwards: those of rows that had not ended.
    rounds: returns to the host.
    admissions: prompt forwards.
    prompt_columns: columns they ran, padding and empty rows included.
    prompt_tokens: tokens of prompts among them.
    buckets: groups of prompts that were run.
    programs: programs that were compiled, one a bucket at most.
  """

  prompts: int = 0
  forwards: int = 0
  row_forwards: int = 0
  useful_row_forwards: int = 0
  rounds: int = 0
  admissions: int = 0
  prompt_columns: int = 0
  prompt_tokens: int = 0
  buckets: int = 0
  programs: int = 0

  @property
  def occupancy(self) -> float:
    """Useful row-forwards / all row-forwards; 1 where nothing ran."""
    return self.useful_row_forwards / self.row_forwards if self.row_forwards else 1.0


class ContinuousDecoder:
  """Decodes many prompts with one model, by any method, in slots that are filled again and again.

  A row's tokens, NFE, query tokens and reveal order are those of `Decoder` on the same prompt alone
  with the same key, whatever runs beside it, in which order, in how many slots.

  Attributes:
    counts: of all runs so far.
    compile_seconds: time spent compiling so far.
  """

  def __init__(
    self,
    lm: LM | SigmaLM,
    limits: Limits,
    *,
    slots: int = 32,
    refill: int = 0,
    stops_of: Callable[[tuple[str, ...]], Stops | None] | None = None,
    note: Callable[[str], None] = lambda text: None,
    keep: int = 16,
    using: Shared | None = None,
  ):
    """For `lm`; `limits` hold for prompts that bring none of their own.

    Args:
      slots: rows decoded together.
      refill: slots that are filled together, once so many have ended; 0: an eighth of them.
      stops_of: strings -> their automaton, for prompts with `stop`.
      note: is told what each bucket holds, and the bytes it takes, before it runs.
      keep: so many programs are kept, those used last.
      using: programs and parameters shared with others of the same model; None: its own.

    Raises:
      UsageError: fewer than one slot, or more to be filled together than there are.
    """
    raise NotImplementedError

  def generate(
    self,
    method: Method,
    params: Any,
    requests: Iterable[Request | Sequence[int]],
    key: jax.Array,
    *,
    window: int = 4096,
  ) -> Iterator[tuple[Any, Result]]:
    """Decodes prompts and yields each as it ends, in no order.

    Args:
      method: how, like `SBD(block_size=8)`.
      params: of the model.
      requests: prompts, with settings of their own or token ids alone.
      key: a typed key.
      window: prompts that are read ahead and grouped together.

    Yields:
      (id, Result). `seconds` are the wall-clock from the start of the round that took the prompt in
      to the end of the round in which it ended, compilation apart; those of prompts that ran side
      by side overlap. `batch_size` is the number of slots.

    Raises:
      UsageError: the model cannot be decoded this way, an empty prompt, a limit beyond that of the
        decoder, or more memory than there is.
    """
    raise NotImplementedError
