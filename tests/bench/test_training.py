"""Timing of updates, with an update that is quick to compile; and the verb with a real one."""

import json

import jax
import jax.numpy as jnp
import pytest

from sbdjax import __main__ as entry
from sbdjax.bench import training
from sbdjax.train.state import TrainState


def test_batch_has_what_every_loss_reads():
  batch = training.make_batch(3, 40, 17)
  assert batch["tokens"].shape == batch["weights"].shape == (3, 40) and batch["tokens"].max() < 17
  assert batch["noisy"].shape == (3, 1, 16) and batch["start"].tolist() == [24] * 3
  short = training.make_batch(1, 6, 17)
  assert short["noisy"].shape == (1, 1, 3) and short["start"] == [3]
  for found in (batch, short):  # noisy blocks stand inside the text
    assert found["start"][0] + found["noisy"][0].size <= found["tokens"].shape[1]


def test_a_row_is_timed_on_a_state_that_is_handed_on():
  seen = []

  def step(state, batch):
    jax.debug.callback(lambda n: seen.append(int(n)), state.step)
    total = jnp.sum(batch["tokens"])
    return state.replace(step=state.step + 1), {"loss": (total, total)}

  params = {"w": jnp.zeros((4, 5))}
  state = TrainState(jnp.int32(0), params, None, None, jax.random.key(0))
  batch = jax.device_put(training.make_batch(2, 8, 7))
  row = training.time_step(jax.jit(step, donate_argnums=0), state, batch, 7, repeats=3)
  jax.effects_barrier()
  assert seen == [0, 1, 2, 3]  # one to warm up
  assert (row.length, row.vocab_size, row.num_params, row.repeats) == (8, 7, 20, 3)
  assert 0 < row.low <= row.seconds <= row.high
  assert row.tokens_per_second == pytest.approx(16 / row.seconds)
  assert row.peak_source == "compiled" and row.peak_bytes >= 4 * (16 + 20)  # tokens, parameters
  assert row.compile_seconds > 0


@pytest.mark.long
@pytest.mark.parametrize("loss", ["sbd", "jacobi", "ssmd"])
def test_verb(loss, capsys):
  flags = ["--lengths=8,16", "--vocabularies=32", "--batch_size=1", "--repeats=3", "--json"]
  model = ["--model.num_layers=1", "--model.d_model=16", "--model.attention_backend=xla"]
  assert entry.main(["bench", "training", f"--loss={loss}", *flags, *model]) == 0
  out = capsys.readouterr().out
  found = json.loads(out)
  assert out.count("\n") == 1 and [row["length"] for row in found["rows"]] == [8, 16]
  assert found["loss"] == loss and found["model"]["d_model"] == 16
  assert all(row["peak_bytes"] > 4 * 3 * row["num_params"] for row in found["rows"])
  assert {"device", "git_commit", "packages", "compilation_cache"} <= found.keys()


@pytest.mark.parametrize(
  "flag, said",
  [
    ("--lengths=8,x", "--lengths=8,x: give numbers"),
    ("--lengths=1", "--lengths=1: give 2 or more"),
    ("--repeats=2", "--repeats=2: give 3 or more"),
    ("--loss=sdb", "invalid choice: 'sdb'"),
    ("--model.num_layer=2", "did you mean 'num_layers'"),
    ("--attention=fast", "--attention='fast'"),
    ("--model.attention_backend=fast", "--attention='fast'"),
    ("--loss.block_size=2", "unknown field loss.block_size"),
  ],
)
def test_bad_flags_are_one_line(capsys, flag, said):
  assert entry.main(["bench", "training", flag]) == 2
  captured = capsys.readouterr()
  assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""
