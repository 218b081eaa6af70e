"""Which key a query sees, one pair at a time, as the figures of the SBD paper define it.

Every function returns a bool [T, S] matrix of one row (sequence). `runs` is the number of the
document at each position, or None.
"""

import numpy as np


def matrix(num_queries, num_keys, sees):
  """bool [T, S] from a predicate of (query index, key index)."""
  return np.array([[bool(sees(q, s)) for s in range(num_keys)] for q in range(num_queries)])


def runs_of(segment_ids):
  """Numbers the maximal runs of equal ids: [5, 5, 2, 5] -> [0, 0, 1, 2]."""
  runs, previous = [], object()
  for value in segment_ids:
    runs.append((runs[-1] + 1 if runs else 0) if value != previous else runs[-1])
    previous = value
  return runs


def _same(runs, a, b):
  return runs is None or runs[a] == runs[b]


def causal(length, runs=None):
  return matrix(length, length, lambda q, s: s <= q and _same(runs, q, s))


def full(num_queries, num_keys, valid):
  return matrix(num_queries, num_keys, lambda q, s: s < valid)


def block_causal(length, k, runs=None):
  return matrix(length, length, lambda q, s: s // k <= q // k and _same(runs, q, s))


def sbd_train(length, k, runs=None):
  """Figure 9, quadrant by quadrant, over [clean; masked]."""

  def sees(q, s):
    q_masked, s_masked = q >= length, s >= length
    i, j = q % length, s % length
    if not _same(runs, i, j):
      return False
    if not q_masked:
      return not s_masked and j <= i
    return i // k == j // k if s_masked else i // k > j // k

  return matrix(2 * length, 2 * length, sees)


def in_cache(visible, length, slots, filled):
  """Rows over [clean; masked] as rows over [cache slots | this forward's tokens].

  The cache holds the clean tokens (`filled`) and the forward is of the masked ones, or the cache is
  empty and the forward is of the clean ones.
  """
  out = np.zeros((len(visible), slots + length), bool)
  clean, masked = np.hsplit(visible, [length])
  if filled:
    out[:, :length], out[:, slots:] = clean, masked
  else:
    assert not masked.any()
    out[:, slots:] = clean
  return out


def block_diffusion_train(length, k, runs=None):
  """BD3-LM's three parts over [clean; noisy]: block-causal, offset block-causal, block diagonal."""

  def sees(q, s):
    q_noisy, s_noisy = q >= length, s >= length
    query_block, key_block = q % length // k, s % length // k
    block_causal = not q_noisy and not s_noisy and key_block <= query_block
    offset_block_causal = q_noisy and not s_noisy and key_block < query_block
    block_diagonal = q_noisy and s_noisy and key_block == query_block
    allowed = block_causal or offset_block_causal or block_diagonal
    return allowed and _same(runs, q % length, s % length)

  return matrix(2 * length, 2 * length, sees)


def open_block(length, boundary, end):
  """Figures 3 and 10: causal before `boundary`; from there on all of the sequence, 0..end-1."""
  return matrix(length, length, lambda q, s: s < end if q >= boundary else s <= q)


def cached(slots, new, committed, first, num_causal):
  """[cache slots | new tokens]: the new ones are `num_causal` causal ones, then an open block."""

  def sees(q, s):
    if s < slots:
      return s < committed
    j = s - slots
    return j >= first and (j <= q if q < num_causal else True)

  return matrix(new, slots + new, sees)


def draft_tree(slots, committed, chain, sizes, after, via, branch=0):
  """[cache slots | chain | branch | groups]: a group sees the chain up to `after`, its `via`, itself;
  the branch sees the chain's first token and itself up to the query."""
  names = [("chain", j) for j in range(chain)] + [("branch", j) for j in range(branch)]
  names += [("group", g) for g, size in enumerate(sizes) for _ in range(size)]

  def sees(q, s):
    if s < slots:
      return s < committed
    (what, mine), (seen, other) = names[q], names[s - slots]
    if what == "chain":
      return seen == "chain" and other <= mine
    if what == "branch":
      return other == 0 if seen == "chain" else seen == "branch" and other <= mine
    if seen == "chain":
      return other <= after[mine]
    return seen == "group" and other in (mine, via[mine])

  return matrix(len(names), slots + len(names), sees)


def branches(slots, d, columns, committed, origin, end, lead, block_size):
  """[cache slots | d drafts]: column c of each stands at origin + c; leading ones are unseen."""

  def sees(q, s):
    if s < slots:
      return s < committed
    if (s - slots) // columns != q // columns:
      return False
    i, j = origin + q % columns, origin + (s - slots) % columns
    earlier = block_size is None or j // block_size <= i // block_size
    return (s - slots) % columns >= lead and j < end and earlier

  return matrix(d * columns, slots + d * columns, sees)


def shared_beginnings(slots, committed, runs):
  """[cache slots | runs]: (number of columns, run it continues or None) each, one after the other."""
  places = [(r, c) for r, (size, _) in enumerate(runs) for c in range(size)]

  def sees(q, s):
    if s < slots:
      return s < committed
    (mine, column), (other, seen) = places[q], places[s - slots]
    return other == runs[mine][1] or (other == mine and seen <= column)

  return matrix(len(places), slots + len(places), sees)


def shared_arrays(rows):
  """The fields of `SharedBeginnings` for rows of runs: before_start, before_end, start, [B, T] each."""
  out = []
  for runs in rows:
    ends = np.cumsum([size for size, _ in runs])
    starts = ends - [size for size, _ in runs]
    columns = []
    for r, (size, before) in enumerate(runs):
      of_before = (starts[r], starts[r]) if before is None else (starts[before], ends[before])
      columns += size * [(*of_before, starts[r])]
    out.append(columns)
  return np.moveaxis(np.array(out, np.int32), 2, 0)


def jacobi_train(length, num_noisy, k, start, context):
  """[clean text; noisy blocks]; `context(i, b)`: what block b sees of block i < b, "clean" or "noisy"."""

  def sees(q, s):
    if q < length:
      return s <= q
    block, offset = divmod(q - length, k)
    if s < length:  # clean: the prompt, or a token of an earlier block
      earlier = (s - start) // k
      return s < start or (earlier < block and context(earlier, block) == "clean")
    earlier, column = divmod(s - length, k)
    if earlier == block:
      return column <= offset
    return earlier < block and context(earlier, block) == "noisy"

  return matrix(length + num_noisy, length + num_noisy, sees)


def noisy_context(i, b):
  """NC: Figure 2b."""
  return "noisy"


def clean_context(i, b):
  """CLLM: Figure 2a."""
  return "clean"


def noisy_window(w):
  """Noisy in one's own window of w blocks, clean before it: the public window trainer."""
  return lambda i, b: "noisy" if i // w == b // w else "clean"


def clean_window(w):
  """NC-IC: clean in one's own window of w blocks, noisy before it (section 4.3)."""
  return lambda i, b: "clean" if i // w == b // w else "noisy"
