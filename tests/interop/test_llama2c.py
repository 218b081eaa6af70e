"""llama2.c checkpoints: the documented story word for word, and files that are no such thing."""

import dataclasses
import lzma
import struct

import jax
import numpy as np
import pytest

from sbdjax.data import assets
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.generate import Decoder
from sbdjax.errors import CheckpointError, UsageError
from sbdjax.interop import llama2c
from sbdjax.interop.pretrained import check_params, load_pretrained
from sbdjax.lm import make_lm
from sbdjax.losses import ntp
from tests import models
from tests.helpers import require_shared
from tests.reference import network, visibility

# What llama2.c's documentation prints for temperature 0.
DOCUMENTED = (
  "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
  "One day, she saw a big, red ball. She wanted to play with it, but it was too high.\n"
  "Lily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to do. "
  'She said, "I want to play with your ball, but I can\'t find it."\n'
  "Lily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to "
  'do."\n'
  "Lily didn't want to help her mom, so she said, \"I'm sorry, mom. I didn't know what to do.\" "
  "Her mom said, \"Don't worry, Lily. We can help you."
)


@pytest.fixture(scope="module")
def stories():
  return load_pretrained("stories260K")


def test_shapes_follow_from_the_header():
  """`load_pretrained` does not check them again."""
  config, params = llama2c.read(assets.path("stories260K.bin"))
  check_params(make_lm(config), params, "stories260K")


def test_the_documented_story_word_for_word(stories):
  lm, params, tokenizer, _ = stories
  decoder = Decoder(lm, Limits(256))
  prompt = tokenizer.encode("Once upon a time", bos=True)
  (result,) = decoder.generate(AR(), params, [prompt], jax.random.key(0))
  # Ours is a few tokens longer: llama2.c counts the prompt among its 256.
  text = tokenizer.decode(prompt + result.tokens)
  assert text[: len(DOCUMENTED)] == DOCUMENTED
  assert result.nfe == 256


def test_loss_on_stories_is_the_published_one(stories):
  """1.2968 is the model's documented validation loss; its first 60 stories here give 1.2958."""
  path = require_shared("data", "tinystories", "tinystories_train_2MiB.txt.xz")
  lm, params, tokenizer, _ = stories
  texts = lzma.open(path, "rt").read().split("<|endoftext|>")
  rows = [tokenizer.encode(t.strip(), bos=True) for t in texts[:60]]
  length = 512
  tokens = np.zeros((60, length), np.int32)
  weights = np.zeros((60, length), np.float32)
  for i, row in enumerate(rows):
    n = min(len(row), length)
    tokens[i, :n], weights[i, :n] = row[:n], 1.0
  loss_fn = ntp.NTPLoss(document_mask=False)

  @jax.jit
  def run(tokens, weights):
    batch = {
      "tokens": tokens,
      "weights": weights,
      "positions": models.positions(*tokens.shape),
      "segment_ids": np.ones(tokens.shape, np.int32),
      "example_id": np.arange(len(tokens), dtype=np.int32),
    }
    return loss_fn(lm, params, batch, jax.random.key(0))[:2]

  sums = [run(tokens[i : i + 10], weights[i : i + 10]) for i in range(0, 60, 10)]
  loss = sum(float(s) for s, _ in sums) / sum(float(w) for _, w in sums)
  assert abs(loss - 1.2958) < 0.0005, loss


# --- reading ---------------------------------------------------------------------------------

SHAPE = dict(dim=8, hidden_dim=12, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=10, seq_len=16)


def file_shapes(c, tied):
  """Tensors in llama2.c's own order and layout ([out, in])."""
  dim, n, dh = c["dim"], c["n_layers"], c["dim"] // c["n_heads"]
  kv = c["n_kv_heads"] * dh
  return [
    ("embedding", (c["vocab_size"], dim)),
    ("attn_norm", (n, dim)),
    ("wq", (n, dim, dim)),
    ("wk", (n, kv, dim)),
    ("wv", (n, kv, dim)),
    ("wo", (n, dim, dim)),
    ("mlp_norm", (n, dim)),
    ("w1", (n, c["hidden_dim"], dim)),
    ("w2", (n, dim, c["hidden_dim"])),
    ("w3", (n, c["hidden_dim"], dim)),
    ("final_norm", (dim,)),
    ("freq_cis", (2, c["seq_len"], dh // 2)),
  ] + ([] if tied else [("head", (c["vocab_size"], dim))])


def write_checkpoint(path, tied=True, seed=0, **changes):
  """A random checkpoint; returns its tensors."""
  c, rng = {**SHAPE, **changes}, np.random.default_rng(seed)
  tensors = {n: rng.normal(size=shape).astype("<f4") for n, shape in file_shapes(c, tied)}
  vocab = c["vocab_size"] if tied else -c["vocab_size"]
  header = struct.pack("<7i", *{**c, "vocab_size": vocab}.values())
  path.write_bytes(header + b"".join(x.tobytes() for x in tensors.values()))
  return tensors


def run_c_forward(t, tokens, tied, shape=SHAPE):
  """Logits as run.c computes them: vectors, [out, in] matrices, pairs rotated in place."""
  dim, heads, kv_heads = shape["dim"], shape["n_heads"], shape["n_kv_heads"]
  dh = dim // heads
  x = t["embedding"][tokens].astype(np.float64)
  freq = network.frequencies(dh, 10_000.0, None)
  where = np.arange(len(tokens))
  for n in range(shape["n_layers"]):
    h = network.rms_norm(x, t["attn_norm"][n], 1e-5)

    def project(w, count, rotated, h=h, n=n):
      y = (h @ t[w][n].T.astype(np.float64)).reshape(len(h), count, dh)
      y = y.transpose(1, 0, 2)
      return np.stack([network.rotate(z, where, freq, True) for z in y]) if rotated else y

    q, k = project("wq", heads, True), project("wk", kv_heads, True)
    out = network.attention(q, k, project("wv", kv_heads, False), visibility.causal(len(tokens)))
    x = x + out.transpose(1, 0, 2).reshape(len(x), dim) @ t["wo"][n].T
    h = network.rms_norm(x, t["mlp_norm"][n], 1e-5)
    gate = h @ t["w1"][n].T
    x = x + (gate / (1 + np.exp(-gate)) * (h @ t["w3"][n].T)) @ t["w2"][n].T
  x = network.rms_norm(x, t["final_norm"], 1e-5)
  return x @ (t["embedding"] if tied else t["head"]).T


@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_goes_where_run_c_reads_it(tmp_path, tied):
  tensors = write_checkpoint(tmp_path / "m.bin", tied)
  config, params = llama2c.read(tmp_path / "m.bin")
  assert (config.vocab_size, config.tie_embeddings, config.max_seq_len) == (10, tied, 16)
  assert config.rope_interleaved and config.mask_id is None
  tokens = np.array([3, 1, 4, 1, 5, 9, 2, 6])
  ours = network.forward(config, params, tokens, np.arange(8), visibility.causal(8))
  np.testing.assert_allclose(ours, run_c_forward(tensors, tokens, tied), atol=1e-9)


# --- writing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_written_is_the_same_network_to_run_c(tmp_path, tied, interleaved):
  lm = models.lm_of(tie_embeddings=tied, rope_interleaved=interleaved, num_heads=2, num_kv_heads=1)
  params = models.random_params(lm)
  llama2c.write(tmp_path / "m.bin", lm.config, params)
  data = (tmp_path / "m.bin").read_bytes()
  shape = dict(zip(SHAPE, struct.unpack_from("<7i", data), strict=True))
  assert shape["vocab_size"] == (13 if tied else -13) and shape["seq_len"] == 64
  shape["vocab_size"] = 13
  tensors, at = {}, 28
  for name, dims in file_shapes(shape, tied):
    tensors[name] = np.frombuffer(data, "<f4", int(np.prod(dims)), at).reshape(dims)
    at += tensors[name].nbytes
  assert at == len(data)
  tokens = np.array([3, 1, 4, 1, 5, 9, 2, 6])
  expected = network.forward(lm.config, params, tokens, np.arange(8), visibility.causal(8))
  np.testing.assert_allclose(run_c_forward(tensors, tokens, tied, shape), expected, atol=1e-9)
  angles = np.outer(np.arange(64), network.frequencies(8, 10_000.0, None))
  np.testing.assert_allclose(tensors["freq_cis"], [np.cos(angles), np.sin(angles)], atol=1e-6)


def test_what_was_read_is_written_byte_for_byte_but_for_the_rotary_tables(tmp_path):
  original = assets.path("stories260K.bin").read_bytes()
  llama2c.write(tmp_path / "m.bin", *llama2c.read(assets.path("stories260K.bin")))
  written = (tmp_path / "m.bin").read_bytes()
  tables = 4 * 512 * 8
  assert len(written) == len(original) and written[:-tables] == original[:-tables]


@pytest.mark.parametrize(
  "changes", [dict(mask_id=12), dict(rope_theta=5e5), dict(qk_norm=True), dict(head_dim=8)]
)
def test_networks_that_run_c_lacks_are_refused_by_name(tmp_path, changes):
  lm = models.lm_of(**changes)
  with pytest.raises(UsageError, match=f"llama2.c has no {next(iter(changes))}="):
    llama2c.write(tmp_path / "m.bin", lm.config, {})
  assert not list(tmp_path.iterdir())


def test_a_missing_file_is_named(tmp_path):
  with pytest.raises(CheckpointError, match="nowhere.bin"):
    llama2c.read(tmp_path / "nowhere.bin")


@pytest.mark.parametrize(
  ("damage", "words"),
  [
    (lambda data: data[:-1], "truncated"),
    (lambda data: data[: len(data) // 2], "truncated"),
    (lambda data: data + b"\0\0\0\0", "announces"),
    (lambda data: data[:20], "20 bytes"),
    (lambda data: b"", "0 bytes"),
    (lambda data: b"\x89PNG\r\n\x1a\n" * 40, "no llama2.c"),
    (lambda data: struct.pack("<7i", 0, 1, 1, 1, 1, 1, 1) + data[28:], "no llama2.c"),
    (lambda data: struct.pack("<7i", 8, 12, 2, 3, 3, 10, 16) + data[28:], "no llama2.c"),
    (lambda data: struct.pack("<7i", 8, 12, 2, 4, 2, 0, 16) + data[28:], "no llama2.c"),
    (lambda data: struct.pack("<7i", 8, 12, 3, 4, 2, 10, 16) + data[28:], "announces"),
    # llama2.c's later formats begin with a magic number and a version
    (lambda data: struct.pack("<Ii", 0x616B3432, 1) + data[8:], "llama2.c legacy"),
  ],
)
def test_truncated_and_foreign_files_are_refused_in_one_line(tmp_path, damage, words):
  path = tmp_path / "m.bin"
  write_checkpoint(path)
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(CheckpointError, match=words) as error:
    llama2c.read(path)
  assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("changes", [dict(n_kv_heads=3), dict(dim=4)], ids=["heads", "odd head"])
def test_a_header_that_describes_no_such_network_is_a_checkpoint_error(tmp_path, changes):
  """The file is as long as it says, but no transformer has this shape."""
  write_checkpoint(tmp_path / "m.bin", **changes)
  with pytest.raises(CheckpointError) as error:
    llama2c.read(tmp_path / "m.bin")
  assert "m.bin" in str(error.value) and "\n" not in str(error.value)


def test_embedded_checkpoint_is_the_published_model():
  config, params = llama2c.read(assets.path("stories260K.bin"))
  fields = dataclasses.asdict(config)
  published = dict(
    d_model=64, num_layers=5, num_heads=8, num_kv_heads=4, vocab_size=512, max_seq_len=512
  )
  assert {name: fields[name] for name in published} == published
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
