"""Streams of batches: the same for every number of processes, and resumed exactly."""

import itertools

import grain
import numpy as np
import orbax.checkpoint as ocp
import pytest

from sbdjax.data.config import DataConfig
from sbdjax.data.corpus import Corpus
from sbdjax.data.pipeline import make_eval, make_pipeline
from sbdjax.errors import CheckpointError, DataError, UsageError
from sbdjax.share import Share

FIELDS = dict(
  tokens=np.int32, weights=np.float32, positions=np.int32, segment_ids=np.int32, example_id=np.int32
)


def small_corpus(seed=0, documents=23):
  """Every token is its own index plus one: nothing looks like padding."""
  lengths = np.random.default_rng(seed).integers(1, 40, documents)
  return Corpus(np.arange(1, lengths.sum() + 1, dtype=np.int32), lengths)


def config_of(packing="concat", **settings):
  return DataConfig(seq_len=8, packing=packing, **settings)


def pipeline(packing="concat", *, seed=3, batch_size=8, corpus=None, workers=0, **process):
  config = config_of(packing, num_workers=workers)
  corpus = small_corpus() if corpus is None else corpus
  return make_pipeline(config, seed=seed, batch_size=batch_size, corpus=corpus, **process)


def take(batches, n):
  return list(itertools.islice(batches, n))


def assert_same(a, b):
  assert len(a) == len(b)
  for x, y in zip(a, b, strict=True):
    assert x.keys() == y.keys() == FIELDS.keys()
    for name in x:
      np.testing.assert_array_equal(x[name], y[name], err_msg=name)


def concatenate(parts):
  return {name: np.concatenate([part[name] for part in parts]) for name in FIELDS}


def test_shapes_and_types():
  batch = next(pipeline(batch_size=4))
  shapes = {name: value.shape for name, value in batch.items()}
  assert {name: value.dtype for name, value in batch.items()} == FIELDS
  assert shapes.pop("example_id") == (4,) and set(shapes.values()) == {(4, 8)}


@pytest.mark.parametrize("packing", ["concat", "first_fit", "pad"])
def test_the_global_batch_does_not_depend_on_the_number_of_processes(packing):
  """Seven steps of 8 rows cross epochs; the union is the same array, not only the same set."""
  alone = take(pipeline(packing), 17)
  assert alone[-1]["example_id"][-1] >= pipeline(packing).rows_per_epoch
  for count in (2, 4, 8):
    streams = [take(pipeline(packing, share=Share(i, count)), 17) for i in range(count)]
    assert_same([concatenate(parts) for parts in zip(*streams, strict=True)], alone)


@pytest.mark.parametrize("size, multiple, count", [(6, 8, 4), (6, 4, 1), (3, 8, 8), (10, 4, 2)])
def test_batches_that_are_filled_up_hold_the_same_rows(size, multiple, count):
  """Of training and of evaluation; what is put in weighs nothing, and is no row of the stream."""
  corpus = small_corpus()
  made = {
    "train": lambda **how: take(pipeline(batch_size=size, **how), 17),
    "eval": lambda **how: list(make_eval(config_of(), batch_size=size, corpus=corpus, **how)),
  }
  for make in made.values():
    parts = [make(share=Share(i, count), multiple=multiple) for i in range(count)]
    whole = make()
    assert len(whole) > 3
    filled = [concatenate(each) for each in zip(*parts, strict=True)]
    for batch in filled:
      assert len(batch["tokens"]) == -(-size // multiple) * multiple
      assert not batch["weights"][size:].any() and not batch["segment_ids"][size:].any()
    assert_same([{n: x[:size] for n, x in batch.items()} for batch in filled], whole)


@pytest.mark.parametrize("packing", ["concat", "first_fit", "pad"])
def test_every_epoch_has_every_token_once_in_another_order(packing):
  corpus = small_corpus()
  batches = pipeline(packing, batch_size=1, corpus=corpus)
  epochs = []
  for _ in range(3):
    rows = take(batches, batches.rows_per_epoch)
    epochs.append(np.concatenate([row["tokens"][row["weights"] > 0] for row in rows]))
    assert sorted(epochs[-1]) == corpus.tokens.tolist()
  assert not any((a == b).all() for a, b in itertools.combinations(epochs, 2))
  assert (epochs[0] != corpus.tokens).any()


def test_concat_cuts_elsewhere_in_each_epoch():
  batches = pipeline(batch_size=1)
  first, second = (
    {tuple(row["tokens"][0]) for row in take(batches, batches.rows_per_epoch)} for _ in range(2)
  )
  assert len(first & second) < len(first) / 4


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("separate", [False, True])
def test_positions_and_segments_are_as_the_settings_say(reset, separate):
  config = config_of("first_fit", reset_positions=reset, separate_documents=separate)
  lengths = np.full(10, 4)
  corpus = Corpus(np.arange(1, 41), lengths)
  batch = next(make_pipeline(config, seed=0, batch_size=1, corpus=corpus))
  assert batch["positions"][0].tolist() == [0, 1, 2, 3] + ([0, 1, 2, 3] if reset else [4, 5, 6, 7])
  assert batch["segment_ids"][0].tolist() == [1] * 4 + [2 if separate else 1] * 4


def test_example_ids_number_the_rows_of_the_stream():
  ids = [batch["example_id"] for batch in take(pipeline(batch_size=6), 30)]
  assert np.concatenate(ids).tolist() == list(range(180))


def test_seeds_give_different_streams():
  assert_same(take(pipeline(seed=1), 3), take(pipeline(seed=1), 3))
  assert (next(pipeline(seed=1))["tokens"] != next(pipeline(seed=2))["tokens"]).any()


@pytest.mark.parametrize("packing", ["concat", "first_fit", "pad"])
def test_state_resumes_exactly(packing):
  whole = take(pipeline(packing), 20)
  first = pipeline(packing)
  take(first, 11)
  state = first.get_state()
  take(first, 3)  # Taken later, so not part of the state.
  second = pipeline(packing)
  take(second, 2)
  second.set_state(state)
  assert second.step == 11
  assert_same(take(second, 9), whole[11:])
  second.seek(4)
  assert_same(take(second, 2), whole[4:6])


def test_state_of_one_process_count_serves_another():
  whole = take(pipeline(), 9)
  first = pipeline(share=Share(1, 2))
  take(first, 5)
  second = pipeline()
  second.set_state(first.get_state())
  assert_same(take(second, 4), whole[5:])


def test_orbax_saves_and_restores_the_position(tmp_path):
  whole = take(pipeline(), 12)
  first = pipeline()
  take(first, 7)
  with ocp.CheckpointManager(tmp_path / "a", item_names=("data",)) as manager:
    saved = ocp.args.Composite(data=grain.checkpoint.CheckpointSave(first))
    manager.save(7, args=saved)
    take(first, 2)
    manager.wait_until_finished()
    second = pipeline()
    restored = ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(second))
    manager.restore(7, args=restored)
  assert_same(take(second, 5), whole[7:])


@pytest.mark.parametrize(
  "change, name",
  [
    (dict(seed=4), "seed"),
    (dict(batch_size=4), "batch_size"),
    (dict(packing="pad"), "packing"),
    (dict(corpus=small_corpus(1)), "tokens"),
    (dict(corpus=Corpus(small_corpus().tokens[::-1], small_corpus().lengths)), "fingerprint"),
  ],
)
def test_a_state_of_another_stream_is_refused(change, name):
  state = pipeline().get_state()
  with pytest.raises(CheckpointError, match=f"belongs to {name}=") as error:
    pipeline(**change).set_state(state)
  assert "\n" not in str(error.value)


@pytest.mark.long
def test_the_number_of_workers_changes_nothing():
  """Grain's own iterator state is tied to it; ours may be saved with 2 workers and go on with 0."""
  whole = take(pipeline(), 10)
  with_workers = pipeline(workers=2)
  assert_same(take(with_workers, 6), whole[:6])
  state = with_workers.get_state()
  with_workers.close()
  for workers in (0, 1):
    resumed = pipeline(workers=workers)
    resumed.set_state(state)
    assert_same(take(resumed, 4), whole[6:])
    resumed.close()


def test_closed_batches_say_so():
  batches = pipeline()
  take(batches, 1)
  batches.close()
  batches.close()
  with pytest.raises(ValueError, match="closed"):
    next(batches)


@pytest.mark.parametrize("packing", ["concat", "first_fit", "pad"])
@pytest.mark.parametrize("batch_size, count", [(1, 1), (4, 1), (8, 2), (64, 4), (400, 2)])
def test_evaluation_sees_every_token_once_in_order(packing, batch_size, count):
  corpus = small_corpus()
  passes = [
    make_eval(config_of(packing), batch_size=batch_size, corpus=corpus, share=Share(i, count))
    for i in range(count)
  ]
  assert len({len(p) for p in passes}) == 1 and len(passes[0]) == len(list(passes[0]))
  batches = [concatenate(parts) for parts in zip(*passes, strict=True)]
  assert all(batch["tokens"].shape == (batch_size, 8) for batch in batches)
  flat = concatenate(batches)
  assert flat["example_id"].tolist() == list(range(batch_size * len(batches)))
  seen = flat["tokens"][flat["weights"] > 0]
  if packing != "first_fit":
    assert seen.tolist() == corpus.tokens.tolist()
  assert sorted(seen) == corpus.tokens.tolist()
  filled = flat["segment_ids"].any(axis=1)
  assert (flat["weights"][~filled] == 0).all() and (len(filled) - filled.sum()) < batch_size
  assert_same(list(passes[0]), list(passes[0]))


def test_evaluation_of_the_first_batches():
  corpus = small_corpus()
  everything = list(make_eval(config_of(), batch_size=4, corpus=corpus))
  assert_same(
    list(make_eval(config_of(), batch_size=4, max_batches=3, corpus=corpus)), everything[:3]
  )
  assert len(make_eval(config_of(), batch_size=4, max_batches=999, corpus=corpus)) == len(
    everything
  )


def test_a_mixture_reads_its_validation_file_once(tmp_path):
  for name in ("a", "b", "v"):
    (tmp_path / f"{name}.txt").write_text(f"{name} {name} {name}. " * 20)
  path = lambda name: str(tmp_path / f"{name}.txt")
  config = DataConfig(
    source="mixture",
    mixture=((path("a"), 1.0), (path("b"), 3.0)),
    valid_path=path("v"),
    seq_len=16,
    packing="pad",
  )
  alone = DataConfig(
    source="files", path=path("v"), split_sizes=(1, 0, 0), seq_len=16, packing="pad"
  )
  found, expected = (
    concatenate(list(make_eval(of, split, batch_size=1)))["tokens"]
    for of, split in ((config, "validation"), (alone, "train"))
  )
  assert found.tolist() == expected.tolist()


def test_embedded_sources_from_settings_alone():
  stories = next(make_pipeline(DataConfig(seq_len=64), seed=0, batch_size=2))
  assert (stories["weights"] == 1).all() and stories["tokens"].max() < 512
  config = DataConfig(
    source="text8", tokenizer="text8", add_bos=False, download=False, cache_dir="nowhere"
  )
  letters = next(make_pipeline(config, seed=0, batch_size=2))
  assert letters["tokens"].max() < 27 and (letters["tokens"] == 0).mean() > 0.05


@pytest.mark.parametrize(
  "kind, change, message",
  [
    (UsageError, dict(batch_size=6, share=Share(0, 4)), "multiple of the 4 processes"),
    (UsageError, dict(batch_size=0), "positive multiple"),
    (UsageError, dict(seed=-1), "seed"),
    (DataError, dict(corpus=Corpus(np.arange(7), np.array([7]))), "fewer than one row"),
  ],
)
def test_bad_requests_are_one_line_errors(kind, change, message):
  with pytest.raises(kind, match=message) as error:
    pipeline(**change)
  assert "\n" not in str(error.value)
  with pytest.raises(UsageError, match="at least one batch"):
    make_eval(config_of(), batch_size=4, max_batches=0, corpus=small_corpus())
