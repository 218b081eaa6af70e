"""Drafts from the row's own text and, where that says less, from n-grams that the model wrote before.

Prompt look-up (`lookup.TextLookup`) has drafts only where a text repeats itself. A table of n-grams,
counted once in other texts of the same model (`data.ngrams`), has one nearly everywhere: phrases that
the model likes are the same in every answer. Reading it costs no forward.

How many drafts pay depends on where they come from. Verifying more of them costs a wider forward, and
a table's drafts get worse from one to the next, since each follows from those before it. What the text
has repeated for n tokens it often repeats for n more: so many are drafted, rounded up to a size at which
a forward is cheap.

Source: as of `data.ngrams`. The order is ours: the longest match counts, of equally long ones that in
the text, whose draft goes on as the text does; the table's goes on with what follows its own drafts.
So is the number of drafts; prompt look-up drafts as many after any match.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import pytree
from sbdjax.data import assets, ngrams
from sbdjax.decode.causal.lookup import Found, TextLookup, match_lengths, repeated
from sbdjax.errors import UsageError

# Between the fewest and the most: with the token before them as many rows as a CPU multiplies at little
# more than the price of one (`nn.summed`). Every size more is a program more to compile.
_SIZES = (4,)


@pytree.dataclass
class NGramLookup(TextLookup):
  """Drafts by the longest match of the last tokens, in the text or in a table of n-grams.

  Attributes:
    lookup_tokens: R, drafts at most. A match of n tokens in the text gives n drafts, rounded up to the
      next of `sizes`.
    longest_match, shortest_match: as of `TextLookup`, of matches in the text; the table's n-grams are
      as long as it was made with, and all of them count.
    lookup_table: file of the table, which `python -m sbdjax ngrams` writes; `asset:NAME` is an
      embedded one. A process reads it once.
    table_tokens: drafts from the table, and the fewest from the text; more than R are R.

  Raises:
    UsageError: as `TextLookup`, or if table_tokens < 1; from `check`, which the sampler calls, if there
      is no table or it is of another vocabulary.
    DataError: from `check`, if the file is no table.
  """

  lookup_tokens: int = pytree.static(default=15)
  longest_match: int = pytree.static(default=15)
  shortest_match: int = pytree.static(default=1)
  lookup_table: str = pytree.static(default="")
  table_tokens: int = pytree.static(default=1)

  def __post_init__(self) -> None:
    super().__post_init__()
    pytree.check(
      self.table_tokens >= 1,
      f"table_tokens={self.table_tokens} must be at least 1 (lookup=text has no table)",
    )

  @property
  def sizes(self) -> tuple[int, ...]:
    fewest, most = min(self.table_tokens, self.width), self.width
    return tuple(sorted({fewest, *(size for size in _SIZES if fewest < size < most), most}))

  def check(self, vocab_size: int) -> None:
    if not self.lookup_table:
      raise UsageError(
        "lookup=ngrams needs a table: lookup_table=FILE (`python -m sbdjax ngrams` writes one)"
      )
    found = _buckets(self.lookup_table).vocab_size
    if found > vocab_size:
      raise UsageError(
        f"lookup_table={self.lookup_table} has a vocabulary of {found} tokens, the model of "
        f"{vocab_size}: take the table of this model"
      )

  def __call__(self, tokens_BxC: jax.Array, length_B: jax.Array) -> Found:
    table, sizes = _buckets(self.lookup_table), self.sizes
    matched_BxC = match_lengths(tokens_BxC, length_B, self.longest_match)
    best_B = jnp.max(matched_BxC, axis=1)
    text_BxR = repeated(tokens_BxC, length_B, matched_BxC, self.width)
    size_S = jnp.array(sizes)
    in_text_B = size_S[jnp.searchsorted(size_S, jnp.clip(best_B, sizes[0], sizes[-1]))]
    chain, matched_B = table.chain(tokens_BxC, length_B, sizes[0])
    from_text_B = (best_B >= self.shortest_match) & (best_B >= matched_B)
    table_BxR = jnp.pad(chain.token_BxR, ((0, 0), (0, self.width - sizes[0])))
    token_BxR = jnp.where(from_text_B[:, None], text_BxR, table_BxR)
    return Found(token_BxR, jnp.where(from_text_B, in_text_B, chain.count_B))


class _Buckets:
  """A table by the highest bits of its keys: a key is among a few neighbours, read at once.

  A binary search would read one key after the other, 18 for each draft of a table of 200,000.

  Attributes:
    longest: tokens of the longest runs.
    vocab_size: tokens are below it.
  """

  def __init__(self, table: ngrams.NGrams):
    self.longest, self.vocab_size = table.longest, table.vocab_size
    bits = max(1, int(np.ceil(np.log2(len(table.key_N)))))
    self._shift = np.uint32(32 - bits)
    bucket = (table.key_N >> self._shift).astype(np.int64)
    sizes = np.bincount(bucket, minlength=2**bits)
    self._start = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
    self._most = int(sizes.max())
    # The last bucket is read beyond the end.
    self._key = np.pad(table.key_N, (0, self._most))
    self._token = np.pad(table.token_N, (0, self._most))

  def chain(self, tokens_BxC: jax.Array, length_B: jax.Array, size: int) -> tuple[Found, jax.Array]:
    """`size` drafts after each text, each from those before it, and the tokens that the first matched.

    Args:
      tokens_BxC: int32, the texts.
      length_B: int32, tokens of each.
      size: drafts; they end at the first token that the table has none after.
    """
    back = [
      jnp.take_along_axis(tokens_BxC, length_B[:, None] - n, axis=1, mode="clip")[:, 0]
      for n in range(1, self.longest + 1)
    ]
    tokens, matched = [], []
    for j in range(size):
      token_B, matched_B = self.after(back, length_B + j)
      tokens.append(token_B)
      matched.append(matched_B)
      back = [token_B, *back[:-1]]
    count_B = jnp.cumprod(jnp.stack(matched, axis=1) > 0, axis=1).sum(axis=1)
    return Found(jnp.stack(tokens, axis=1), count_B), matched[0]

  def after(self, back: list[jax.Array], length_B: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The draft after each row, and the length of the longest run at its end that the table has.

    Args:
      back: int32 [B] each: the last token, the one before it, ..., `longest` of them.
      length_B: int32, tokens of each row; runs longer than the row match nothing.

    Returns:
      token_B: int32; means nothing where nothing matched.
      matched_B: int32, tokens of the run, 0: none.
    """
    last = [token_B.astype(jnp.uint32) for token_B in back]
    runs = range(self.longest, 0, -1)
    key_BxO = jnp.stack([ngrams.hashed(last[:n]) for n in runs], axis=1)
    start_BxO = jnp.asarray(self._start)[key_BxO >> self._shift]
    at_BxOxM = start_BxO[..., None] + jnp.arange(self._most)
    same_BxOxM = jnp.asarray(self._key)[at_BxOxM] == key_BxO[..., None]
    # A bucket's neighbours have other keys, the padding is zeros.
    same_BxOxM &= at_BxOxM < len(self._key) - self._most
    n_O = jnp.array(runs)
    known_BxO = same_BxOxM.any(axis=2) & (n_O <= length_B[:, None])
    which_B = jnp.argmax(known_BxO, axis=1)
    rows_B = jnp.arange(len(which_B))
    at_B = at_BxOxM[rows_B, which_B, jnp.argmax(same_BxOxM, axis=2)[rows_B, which_B]]
    return jnp.asarray(self._token)[at_B], jnp.where(known_BxO.any(axis=1), n_O[which_B], 0)


@functools.cache
def _buckets(name: str) -> Any:
  return _Buckets(ngrams.read(assets.resolve(name)))
