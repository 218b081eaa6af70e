"""BERT from its own tensors: logits against numpy, what is folded and ignored, what is put on it."""

import json
import math
import shutil
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from sbdjax import __main__ as entry
from sbdjax import masks
from sbdjax.errors import CheckpointError, UsageError
from sbdjax.interop import llama2c, load_pretrained, save_pretrained, unpickle
from sbdjax.nn.sigma import HeadConfig
from sbdjax.sigma_lm import SigmaLM, make_sigma_lm
from sbdjax.train.state import leaf_names
from tests import models
from tests.interop import hf_models
from tests.jit import quick_jit

T, HEADS, LAYERS, EPS = 7, 4, 2, 1e-3
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] A C D E F G H I".split()
SETTINGS = dict(
  architectures=["BertForMaskedLM"],
  model_type="bert",
  vocab_size=len(TOKENS),
  hidden_size=16,
  num_hidden_layers=LAYERS,
  num_attention_heads=HEADS,
  intermediate_size=20,
  max_position_embeddings=12,
  type_vocab_size=2,
  hidden_act="gelu",
  layer_norm_eps=EPS,
)
EMBEDDINGS, HEAD = "bert.embeddings.", "cls.predictions."


def tensors(seed=0):
  """A random BERT under the names of its files, matrices [out, in]."""
  rng = np.random.default_rng(seed)
  found = {}

  def add(name, *shape, scale=0.4, mean=0.0):
    found[name] = (mean + scale * rng.normal(size=shape)).astype(np.float32)

  def dense(name, outputs, inputs):
    add(f"{name}.weight", outputs, inputs)
    add(f"{name}.bias", outputs)

  def norm(name):
    add(f"{name}.weight", 16, scale=0.3, mean=1.0)
    add(f"{name}.bias", 16)

  for name, rows in (("word", len(TOKENS)), ("position", 12), ("token_type", 2)):
    add(f"{EMBEDDINGS}{name}_embeddings.weight", rows, 16, scale=1.0)
  norm(f"{EMBEDDINGS}LayerNorm")
  for n in range(LAYERS):
    layer = f"bert.encoder.layer.{n}."
    for name in ("query", "key", "value"):
      dense(f"{layer}attention.self.{name}", 16, 16)
    dense(f"{layer}attention.output.dense", 16, 16)
    dense(f"{layer}intermediate.dense", 20, 16)
    dense(f"{layer}output.dense", 16, 20)
    norm(f"{layer}attention.output.LayerNorm")
    norm(f"{layer}output.LayerNorm")
  dense(f"{HEAD}transform.dense", 16, 16)
  norm(f"{HEAD}transform.LayerNorm")
  add(f"{HEAD}bias", len(TOKENS))
  return found


def reference(w, tokens_T):
  """Devlin et al. 2018 in float64: hidden states [T, D] after the last layer, and logits [T, V]."""
  w = {name: x.astype(np.float64) for name, x in w.items()}
  dense = lambda name, x: x @ w[f"{name}.weight"].T + w[f"{name}.bias"]
  gelu = lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

  def norm(name, x):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]

  x = w[f"{EMBEDDINGS}word_embeddings.weight"][tokens_T]
  x = x + w[f"{EMBEDDINGS}position_embeddings.weight"][: len(tokens_T)]
  x = norm(f"{EMBEDDINGS}LayerNorm", x + w[f"{EMBEDDINGS}token_type_embeddings.weight"][0])
  for n in range(LAYERS):
    layer = f"bert.encoder.layer.{n}."
    q, k, v = (
      dense(f"{layer}attention.self.{name}", x).reshape(-1, HEADS, 4).swapaxes(0, 1)
      for name in ("query", "key", "value")
    )
    scores = np.exp(q @ k.swapaxes(1, 2) / math.sqrt(4))
    seen = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(-1, 16)
    seen = dense(f"{layer}attention.output.dense", seen)
    x = norm(f"{layer}attention.output.LayerNorm", x + seen)
    inner = gelu(dense(f"{layer}intermediate.dense", x))
    x = norm(f"{layer}output.LayerNorm", x + dense(f"{layer}output.dense", inner))
  y = norm(f"{HEAD}transform.LayerNorm", gelu(dense(f"{HEAD}transform.dense", x)))
  return x, y @ w[f"{EMBEDDINGS}word_embeddings.weight"].T + w[f"{HEAD}bias"]


def write(folder, w, tokens=TOKENS, **settings):
  folder.mkdir(exist_ok=True)
  (folder / "config.json").write_text(json.dumps(SETTINGS | settings))
  (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
  safetensors.numpy.save_file(w, folder / "model.safetensors")
  return folder


@pytest.fixture
def folder(tmp_path):
  return write(tmp_path / "bert", tensors())


def forward(model, tokens, mask=None):
  """Hidden states and logits of a bidirectional forward."""
  hidden, _ = model.lm.apply(
    model.params,
    tokens,
    positions_BxT=models.positions(*tokens.shape),
    mask=masks.Full() if mask is None else mask,
  )
  return np.asarray(hidden), np.asarray(model.lm.logits(model.params, hidden))


TEXTS = models.tokens(3, T, len(TOKENS))


def test_logits_equal_numpys(folder):
  model = load_pretrained(folder)
  hidden, logits = forward(model, TEXTS)
  for row, tokens in enumerate(TEXTS):
    expected, expected_logits = reference(tensors(), tokens)
    np.testing.assert_allclose(hidden[row], expected, atol=2e-5)
    kept = np.delete(np.arange(len(TOKENS)), 4)
    np.testing.assert_allclose(logits[row][:, kept], expected_logits[:, kept], atol=5e-5)
  assert (logits[..., 4] == -1e30).all()
  assert logits[..., kept].std() > 0.3, "logits so alike that anything would pass"


def test_what_decoding_needs_to_know(folder):
  model = load_pretrained(folder)
  assert (model.generation.attention, model.generation.mask_id) == ("full", 4)
  assert model.generation.eos_ids == (3,) and not model.generation.shifted
  assert model.tokenizer.encode("A C[MASK]D", bos=True, eos=True) == [2, 5, 6, 4, 7, 3]
  assert (model.lm.config.norm_eps, model.lm.config.max_seq_len) == (EPS, 12)


# --- there and back --------------------------------------------------------------------------------


def test_types_become_part_of_the_positions_and_come_back_as_zeros(folder, tmp_path):
  w, model = tensors(), load_pretrained(folder)
  folded = w[f"{EMBEDDINGS}position_embeddings.weight"]
  folded = folded + w[f"{EMBEDDINGS}token_type_embeddings.weight"][0]
  np.testing.assert_array_equal(model.params["position_embedding"], folded)
  save_pretrained(tmp_path / "again", model)
  found = safetensors.numpy.load_file(tmp_path / "again" / "model.safetensors")
  changed = {
    f"{EMBEDDINGS}position_embeddings.weight": folded,
    f"{EMBEDDINGS}token_type_embeddings.weight": np.zeros((2, 16), np.float32),
    f"{HEAD}decoder.bias": w[f"{HEAD}bias"],
  }
  expected = w | changed
  assert found.keys() == expected.keys()
  for name, x in expected.items():
    assert found[name].tobytes() == x.tobytes(), name
  settings = json.loads((tmp_path / "again" / "config.json").read_text())
  assert settings["type_vocab_size"] == 2 and settings["architectures"] == ["BertForMaskedLM"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_second_time_it_is_bit_for_bit(tmp_path, dtype):
  """Zeros of either sign among the positions included."""
  model = hf_models.build("bert", param_dtype=dtype, compute_dtype=dtype)
  table = model.params["position_embedding"].at[0, :2].set(jnp.array([0.0, -0.0], dtype))
  model = model._replace(params=model.params | {"position_embedding": table})
  for source, name in ((model, "a"), (None, "b")):
    source = source or load_pretrained(tmp_path / "a", dtype="stored")
    save_pretrained(tmp_path / name, source)
  a, b = (load_pretrained(tmp_path / name, dtype="stored") for name in "ab")
  for x, y, z in zip(*(jax.tree.leaves(m.params) for m in (model, a, b)), strict=True):
    assert np.asarray(x).tobytes() == np.asarray(y).tobytes() == np.asarray(z).tobytes()
  files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
  assert files[0] == files[1]


def test_sums_of_half_precision_are_rounded_once(tmp_path):
  half = {name: x.astype(np.float16) for name, x in tensors().items()}
  found = load_pretrained(write(tmp_path / "m", half), dtype="float32").params
  exact = half[f"{EMBEDDINGS}position_embeddings.weight"].astype(np.float32)
  exact = exact + half[f"{EMBEDDINGS}token_type_embeddings.weight"][0].astype(np.float32)
  np.testing.assert_array_equal(found["position_embedding"], exact)


# --- other ways of writing it ----------------------------------------------------------------------


def same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a.params, b.params)


def test_antiberty_and_its_heads_for_other_purposes(folder, tmp_path):
  rng = np.random.default_rng(1)
  heads = {
    f"{name}.{kind}": rng.normal(size=(2, 16) if kind == "weight" else 2).astype(np.float32)
    for name in (
      "cls.species",
      "cls.chain",
      "cls.graft",
      "cls.seq_relationship",
      "bert.pooler.dense",
    )
    for kind in ("weight", "bias")
  }
  heads[f"{EMBEDDINGS}position_ids"] = np.arange(12)[None]
  other = write(tmp_path / "anti", tensors() | heads, architectures=["AntiBERTy"])
  (other / "vocab.txt").unlink()
  model = load_pretrained(other)
  same(model, load_pretrained(folder))
  assert model.tokenizer is None and model.lm.config.mask_id == 4


def test_a_head_for_nothing_known_is_refused(tmp_path):
  extra = {"cls.stability.weight": np.zeros((2, 16), np.float32)}
  with pytest.raises(CheckpointError, match="cls.stability.weight.*no place"):
    load_pretrained(write(tmp_path / "m", tensors() | extra))


def test_copies_of_the_tied_head(folder, tmp_path):
  w = tensors()
  table = {f"{HEAD}decoder.weight": w[f"{EMBEDDINGS}word_embeddings.weight"].copy()}
  same(load_pretrained(write(tmp_path / "a", w | table)), load_pretrained(folder))
  table[f"{HEAD}decoder.weight"][0, 0] += 1
  with pytest.raises(CheckpointError, match="decoder.weight is another matrix"):
    load_pretrained(write(tmp_path / "b", w | table))


def test_the_decoders_own_bias_counts(tmp_path):
  """As in transformers, where it is another one if embeddings are not tied."""
  w, own = tensors(), np.arange(len(TOKENS), dtype=np.float32)
  w |= {f"{HEAD}decoder.weight": w[f"{EMBEDDINGS}word_embeddings.weight"] + 1}
  w |= {f"{HEAD}decoder.bias": own}
  model = load_pretrained(write(tmp_path / "m", w, tie_word_embeddings=False))
  np.testing.assert_array_equal(model.params["head_bias"], own)
  del w[f"{HEAD}bias"]
  same(load_pretrained(write(tmp_path / "n", w, tie_word_embeddings=False)), model)


@pytest.mark.parametrize(
  ("edit", "words"),
  [
    (lambda w: w.pop(f"{EMBEDDINGS}token_type_embeddings.weight"), r"token_type.*\[1, 16\]"),
    (
      lambda w: w.update({f"{EMBEDDINGS}token_type_embeddings.weight": np.zeros((2, 3))}),
      "token_type",
    ),
    (lambda w: w.pop(f"{EMBEDDINGS}LayerNorm.bias"), "LayerNorm.bias"),
    (lambda w: w.pop(f"{HEAD}bias"), "cls.predictions.bias"),
  ],
)
def test_missing_tensors_are_named(tmp_path, edit, words):
  w = tensors()
  edit(w)
  with pytest.raises(CheckpointError, match=words):
    load_pretrained(write(tmp_path / "m", w))


# --- what is put on it -----------------------------------------------------------------------------


def test_llama2c_has_no_post_norm(tmp_path):
  model = hf_models.build("bert", mask_id=None, num_kv_heads=4)
  with pytest.raises(UsageError, match="llama2.c has no"):
    llama2c.write(tmp_path / "m.bin", model.lm.config, model.params)
  plain = models.config(norm_order="post")
  with pytest.raises(UsageError, match="norm_order='post'"):
    llama2c.write(tmp_path / "m.bin", plain, models.random_params(models.lm_of(norm_order="post")))


def test_a_head_of_causal_blocks_reads_the_last_norms_output(folder):
  model = load_pretrained(folder)
  lm = make_sigma_lm(model.lm.config, HeadConfig())
  params = quick_jit(lm.init)(jax.random.key(0)) | {"trunk": model.params}
  stream = lm.trunk(params, TEXTS)
  hidden, logits = forward(model, TEXTS)
  np.testing.assert_array_equal(stream, hidden)
  np.testing.assert_array_equal(lm.logits(params, stream), logits)
  assert "final_norm" not in params["trunk"]


CONFIG = """
from ml_collections import ConfigDict

def get_config():
  return ConfigDict(dict(
    init=dict(checkpoint="FOLDER"),
    head=dict(num_layers=1),
    model=dict(),
    data=dict(
      source="fasta", path="FASTA", tokenizer="FOLDER", packing="crop", add_bos=True, add_eos=True,
      separate_documents=True, seq_len=10,
    ),
    loss=dict(name="ssmd", schedule="cosine", weighting="inverse_count"),
    optim=dict(name="muon", learning_rate=0.01, schedule="constant", frozen="^trunk/"),
    train=dict(steps=2, batch_size=4, log_every=1),
  ))
"""


@pytest.mark.long
def test_causal_blocks_are_trained_on_a_frozen_bert(folder, tmp_path):
  rng = np.random.default_rng(0)
  rows = ["".join(rng.choice(list("ACDEFGHI"), 9)) for _ in range(40)]
  fasta = tmp_path / "x.fasta"
  fasta.write_text("".join(f">{i}\n{row}\n" for i, row in enumerate(rows)))
  text = CONFIG.replace("FOLDER", str(folder)).replace("FASTA", str(fasta))
  (tmp_path / "config.py").write_text(text)
  flags = [f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / 'run'}"]
  assert entry.main(["train", *flags]) == 0
  found, before = load_pretrained(tmp_path / "run"), load_pretrained(folder)
  assert isinstance(found.lm, SigmaLM)
  for name, leaf in leaf_names(before.params).items():
    np.testing.assert_array_equal(leaf_names(found.params["trunk"])[name], leaf, err_msg=name)
  assert np.abs(found.params["head"]["out_kernel"]).max() > 0
  with pytest.raises(UsageError, match="causal blocks"):
    save_pretrained(tmp_path / "out", found)


# --- pickles ---------------------------------------------------------------------------------------


def test_unpickling_without_torch_is_one_line(tmp_path):
  code = (
    "import sys; sys.modules['torch'] = None; from sbdjax.interop import unpickle; "
    "sys.exit(unpickle.main(sys.argv[1:]))"
  )
  command = [sys.executable, "-c", code, str(tmp_path), str(tmp_path / "out")]
  done = subprocess.run(command, capture_output=True, text=True, timeout=120)
  assert done.returncode == 1 and not done.stdout
  assert done.stderr.startswith("error: unpickling needs torch") and done.stderr.count("\n") == 1
  assert not (tmp_path / "out").exists()


def test_unpickling_by_an_old_torch_is_refused(tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.5.1+cpu"))
  assert unpickle.main([str(tmp_path), str(tmp_path / "out")]) == 1
  assert "2.5.1" in capsys.readouterr().err
  assert unpickle.main([str(tmp_path)]) == 2


class Payload:
  """Unpickling it writes a file."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return open, (str(self.path), "w")


def test_unpickled_weights_open(folder, tmp_path, capsys):
  torch = pytest.importorskip("torch", reason="needs the extra `parity`: torch is not installed")
  expected = load_pretrained(folder)
  weights = {name: torch.tensor(x) for name, x in tensors().items()}
  weights[f"{HEAD}decoder.weight"] = weights[f"{EMBEDDINGS}word_embeddings.weight"]
  (folder / "model.safetensors").unlink()
  torch.save(weights, folder / "pytorch_model.bin")
  shutil.copy(folder / "config.json", folder / "notes.json")
  with pytest.raises(CheckpointError, match="sbdjax.interop.unpickle FOLDER OUT"):
    load_pretrained(folder)
  assert unpickle.main([str(folder), str(tmp_path / "out")]) == 0
  names = {path.name for path in (tmp_path / "out").iterdir()}
  assert names == {"config.json", "vocab.txt", "model.safetensors"}
  found = load_pretrained(tmp_path / "out")
  same(found, expected)
  assert found.lm.config == expected.lm.config
  assert unpickle.main([str(folder), str(tmp_path / "out")]) == 1
  assert "exists already" in capsys.readouterr().err


def test_pickles_of_more_than_tensors_are_refused(tmp_path, capsys):
  torch = pytest.importorskip("torch", reason="needs the extra `parity`: torch is not installed")
  for i, value in enumerate(({"x": Payload(tmp_path / "ran")}, {"x": 3})):
    folder = tmp_path / str(i)
    folder.mkdir()
    torch.save(value, folder / "pytorch_model.bin")
    assert unpickle.main([str(folder), str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert "pytorch_model.bin" in message and message.count("\n") == 1
  assert not (tmp_path / "ran").exists() and not (tmp_path / "out").exists()
