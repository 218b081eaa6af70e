"""Whatever a file holds, reading it ends: with a value, or with one error of this package.

One target a parser. Each begins with a valid file and checks that it is read, so that what is
changed is near to what works.
"""

import functools
import io
import json
import lzma
import math
import pathlib
import resource
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("hypothesis", reason="needs the extra `dev`: hypothesis")

import safetensors.numpy
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models

from sbdjax import failures
from sbdjax.batch.read import read as read_requests
from sbdjax.data import (
  assets,
  chat,
  fasta,
  files,
  folders,
  gguf_header,
  gguf_tokenizer,
  tfds_files,
  token_file,
)
from sbdjax.data.llama2c_tokenizer import Llama2cTokenizer
from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.errors import SbdjaxError
from sbdjax.interop import GenerationDefaults, adapter_file, llama2c, native, save_pretrained
from sbdjax.interop.gguf import config as gguf_config
from sbdjax.interop.gguf import tensors as gguf_tensors
from sbdjax.interop.hf import configs, directory, generation_config, tensor_files
from sbdjax.train import inventory
from tests.fuzz.strategies import JSON, changed, changed_bytes, fuzz, text_of
from tests.interop import gguf_files, hf_models
from tests.models import lm_of

# More than any target needs, less than a size that was believed would take.
_MEMORY = 6 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
  """A size that was believed fails, instead of taking the machine with it."""
  used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
  before = resource.getrlimit(resource.RLIMIT_AS)
  resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, before[1]))
  yield
  resource.setrlimit(resource.RLIMIT_AS, before)


def ends_well(read, *args):
  """The value, or None after an error of this package, which is one short line."""
  try:
    return read(*args)
  except SbdjaxError as e:
    message, code = failures.explain(e)
    assert message and "\n" not in message and len(message) < 3000 and code in (1, 2), message
    return None


def put(path, data):
  path.write_bytes(data.encode() if isinstance(data, str) else data)
  return path


# --- settings of checkpoints ------------------------------------------------------------------------


@functools.cache
def saved(name):
  return configs.to_settings(*_parts(name))


def _parts(name):
  fields, how, _ = hf_models.FAMILIES[name]
  config = lm_of(**fields).config
  return config, GenerationDefaults(**{"eos_ids": (2, 3), "mask_id": config.mask_id} | how)


NAMES = ("llama", "qwen3", "gpt2", "esm", "bert", "llada", "dream", "sdar")


def read_settings(path):
  settings = tensor_files.read_json(path)
  configs.check_written(settings, str(path))
  family = configs.family_of(settings, str(path))
  mask_id = directory._mask_id(family, settings, None)
  configs.from_settings(family, settings, mask_id=mask_id, dtype=None, where=str(path))
  configs.block_size(family, settings)
  return directory._eos_ids(family, settings, {}, None)


@pytest.mark.parametrize("name", NAMES)
def test_config_json(folder, name):
  valid = saved(name)
  path = put(folder / "config.json", text_of(valid))
  assert read_settings(path) is not None

  @fuzz
  @given(changed(valid))
  def check(value):
    ends_well(read_settings, put(path, text_of(value)))

  check()


@fuzz
@given(st.one_of(JSON.map(text_of), st.text(max_size=50), st.binary(max_size=50)))
def test_any_json(tmp_path_factory, data):
  path = put(
    tmp_path_factory.getbasetemp() / "any.json",
    data if isinstance(data, bytes) else data.encode("utf-8", "replace"),
  )
  ends_well(read_settings, path)
  ends_well(generation_config.read, path)


GENERATION = dict(
  do_sample=True, temperature=0.6, top_k=20, top_p=0.9, max_new_tokens=9, eos_token_id=[2]
)


def test_generation_config(folder):
  path = folder / "generation_config.json"

  def read():
    return generation_config.read_decoding(generation_config.read(path))

  put(path, text_of(GENERATION))
  assert read()["top_k"] == 20

  @fuzz
  @given(changed(GENERATION))
  def check(value):
    put(path, text_of(value))
    ends_well(read)

  check()


# --- weights ----------------------------------------------------------------------------------------

TENSORS = {
  "a": np.ones((2, 3), np.float32),
  "b": np.zeros(5, np.float16),
  "c": np.ones(4, np.float32),
}


def read_tensors(path):
  """Reads everything a header promises."""
  size = path.stat().st_size
  found = tensor_files.read_header(path)
  for stored in found.values():
    assert all(n >= 0 for n in stored.shape)
    if stored.itemsize:
      assert 0 <= stored.start and stored.start + math.prod(stored.shape) * stored.itemsize <= size
      stored.read()
  return found


def with_header(header, rest):
  text = text_of(header).encode()
  return len(text).to_bytes(8, "little") + text + rest


def test_safetensors_header(folder):
  data = safetensors.numpy.save(TENSORS, {"format": "pt"})
  length = int.from_bytes(data[:8], "little")
  header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
  path = folder / "model.safetensors"
  assert set(read_tensors(put(path, with_header(header, rest)))) == set(TENSORS)

  @fuzz
  @given(st.one_of(changed(header).map(lambda h: with_header(h, rest)), changed_bytes(data)))
  def check(made):
    ends_well(read_tensors, put(path, made))
    ends_well(native.read, path)
    ends_well(adapter_file.read, path)

  check()


def test_index_of_shards(folder):
  place = folder / "sharded"
  place.mkdir()
  safetensors.numpy.save_file(TENSORS, place / "one.safetensors")
  put(folder / "secret.safetensors", safetensors.numpy.save(TENSORS))
  valid = {"metadata": {"total_size": 50}, "weight_map": dict.fromkeys(TENSORS, "one.safetensors")}
  path = put(place / tensor_files.INDEX, text_of(valid))
  assert set(tensor_files.read_folder(place)) == set(TENSORS)

  @fuzz
  @given(changed(valid))
  def check(value):
    put(path, text_of(value))
    found = ends_well(tensor_files.read_folder, place)
    assert found is None or all(x.file.parent == place for x in found.values())

  check()


@pytest.mark.parametrize("key", ["sbdjax", "sbdjax_adapter"])
def test_our_own_header(folder, key):
  path, sizes = folder / "own.safetensors", dict(vocab_size=9, num_layers=1, d_model=8, d_ff=4)
  config = sizes | dict(num_heads=4, num_kv_heads=2, max_seq_len=32)
  valid = {
    "sbdjax": {"model": config, "tokenizer": "tok512", "eos_ids": [2]},
    "sbdjax_adapter": {"adapter": {"rank": 2}, "mask_id": 3, "base_sha256": "ab"},
  }[key]
  read = {"sbdjax": native.read, "sbdjax_adapter": adapter_file.read}[key]
  put(path, safetensors.numpy.save(TENSORS, {key: text_of(valid)}))
  assert read(path)

  @fuzz
  @given(changed(valid))
  def check(value):
    put(path, safetensors.numpy.save(TENSORS, {key: text_of(value)}))
    ends_well(read, path)

  check()


def test_llama2c_checkpoints(folder):
  data = assets.path("stories260K.bin").read_bytes()
  path = folder / "model.bin"

  @fuzz
  @given(changed_bytes(data[:2000]))
  def check(made):
    ends_well(llama2c.read, put(path, made + data[2000:]))

  check()


def test_gguf_files(folder):
  path = folder / "model.gguf"
  save_pretrained(folder / "hf", hf_models.build("qwen2"))
  data = gguf_files.convert(folder / "hf", path).read_bytes()

  def read():
    header = gguf_header.read(path)
    gguf_tokenizer.of_metadata(header.metadata, str(path))
    gguf_config.settings_of(header, None)
    for stored in gguf_tensors.of_header(header).values():
      stored.read()
    return header

  assert read()

  @fuzz
  @given(changed_bytes(data))
  def check(made):
    put(path, made)
    ends_well(read)

  check()


# --- tokenizers -------------------------------------------------------------------------------------

TEXT = "abc <s> é\ud7ff 🙂 " * 3


def use(tokenizer):
  ids = tokenizer.encode(TEXT)
  tokenizer.decode(ids)
  stream = tokenizer.stream()
  return [*map(stream.push, ids), stream.finish()]


def read_and_use(place):
  tokenizer = load_tokenizer(str(place))
  ends_well(use, tokenizer)
  return tokenizer


@pytest.fixture(scope="module")
def tokenizer_folder(folder):
  place = folder / "tokenizer"
  place.mkdir()
  words = {w: i for i, w in enumerate(["<s>", "</s>", *"abcdefgh", "ab", "abc"])}
  made = library.Tokenizer(models.BPE(words, [("a", "b"), ("ab", "c")], byte_fallback=True))
  made.add_special_tokens(["<s>", "</s>"])
  made.save(str(place / "tokenizer.json"))
  put(place / "tokenizer_config.json", text_of({"bos_token": "<s>", "add_bos_token": True}))
  return place


def test_tokenizer_json(tokenizer_folder):
  path = tokenizer_folder / "tokenizer.json"
  valid = json.loads(path.read_text())
  assert read_and_use(tokenizer_folder)

  @fuzz
  @given(changed(valid))
  def check(value):
    put(path, text_of(value))
    ends_well(read_and_use, tokenizer_folder)

  check()
  put(path, text_of(valid))


CONFIG = {
  "bos_token": "<s>",
  "eos_token": {"content": "</s>", "special": True},
  "mask_token": None,
  "add_bos_token": False,
  "tokenizer_class": "X",
  "chat_template": [{"name": "default", "template": "{{ messages }}"}],
}


def test_tokenizer_config(tokenizer_folder):
  path = put(tokenizer_folder / "tokenizer_config.json", text_of(CONFIG))
  assert read_and_use(tokenizer_folder)

  @fuzz
  @given(changed(CONFIG))
  def check(value):
    put(path, text_of(value))
    ends_well(read_and_use, tokenizer_folder)

  check()


def test_llama2c_vocabularies(folder):
  data = assets.path("tok512.bin").read_bytes()
  path = folder / "tok512.bin"

  def read():
    return use(Llama2cTokenizer.load(path))

  put(path, data)
  assert read()

  @fuzz
  @given(changed_bytes(data))
  def check(made):
    put(path, made)
    ends_well(read)

  check()


@fuzz
@given(st.text(max_size=60))
def test_chat_template_sources(source):
  template = chat.ChatTemplate({"default": "{{" + source + "}}"}, {}, "here")
  ends_well(template.render, [{"role": "user", "content": "x"}])


# --- data -------------------------------------------------------------------------------------------

LINES = [{"text": "a"}, {"prompt": "b", "response": "c"}, {"tokens": [1, 2], "prompt_tokens": [3]}]


def test_jsonl(folder):
  path = folder / "data.jsonl"

  def lines(records):
    return "\n".join(map(text_of, records)) + "\n"

  assert len(files.read_jsonl(put(path, lines(LINES)))) == 3

  @fuzz
  @given(st.one_of(changed(LINES).map(lines), changed_bytes(lines(LINES).encode())))
  def check(data):
    put(path, data)
    for read in (files.read_jsonl, files.read_prompts, fasta.read_fasta):
      ends_well(read, path)
    ends_well(files.read_documents, path, "|")

  check()


def _table(write):
  """LINES as the bytes of a Parquet or Arrow file."""
  names = dict.fromkeys(name for line in LINES for name in line)
  table = pa.table({name: [line.get(name) for line in LINES] for name in names})
  held = io.BytesIO()
  write(table, held)
  return held.getvalue()


def _arrow(table, file):
  with pa.ipc.new_stream(file, table.schema) as writer:
    writer.write_table(table)


@pytest.mark.parametrize(
  ("ending", "write"), [(".parquet", pq.write_table), (".arrow", _arrow)], ids=["parquet", "arrow"]
)
def test_tables(folder, ending, write):
  path, whole = folder / f"data{ending}", _table(write)
  read = lambda: list(folders.read(path, "|", "text"))
  put(path, whole)
  assert len(read()) == 3

  @fuzz
  @given(changed_bytes(whole))
  def check(data):
    put(path, data)
    ends_well(read)

  check()


STATE = {"_data_files": [{"filename": "a.arrow"}], "_split": "train"}


def test_the_state_of_a_saved_data_set(tmp_path):
  put(tmp_path / "a.arrow", _table(_arrow))
  (tmp_path / "state.json").write_text(json.dumps(STATE))
  assert folders.find(tmp_path, "train").paths == [tmp_path / "a.arrow"]

  @fuzz
  @given(st.one_of(changed(STATE).map(text_of), st.binary(max_size=40)))
  def check(data):
    put(tmp_path / "state.json", data)
    ends_well(folders.find, tmp_path, "train")

  check()


REQUESTS = [
  {"prompt": "a", "id": "x", "max_tokens": 3, "stop": ["b"], "meta": {"a": [1]}},
  {"prompt_tokens": [1, 2], "seed": 1, "eos_ids": [2]},
  {"messages": [{"role": "user", "content": "Hi"}], "id": 7},
]


def test_requests(folder):
  path = folder / "requests.jsonl"

  def lines(records):
    return "\n".join(map(text_of, records)) + "\n"

  assert len(list(read_requests(put(path, lines(REQUESTS))))) == 3

  @fuzz
  @given(st.one_of(changed(REQUESTS).map(lines), changed_bytes(lines(REQUESTS).encode())))
  def check(data):
    ends_well(lambda: list(read_requests(put(path, data))))

  check()


def _zip(method):
  held = io.BytesIO()
  with zipfile.ZipFile(held, "w", method) as archive:
    archive.writestr("a.txt", "some text " * 50)
  return held.getvalue()


@pytest.mark.parametrize("ending", [".xz", ".gz", ".zip"])
def test_compressed_files(folder, ending):
  import gzip

  text = b"some text " * 50
  data = {
    ".xz": lzma.compress(text),
    ".gz": gzip.compress(text),
    ".zip": _zip(zipfile.ZIP_DEFLATED),
  }
  path = put(folder / f"x{ending}", data[ending])
  assert files.read_bytes(path) == text

  @fuzz
  @given(changed_bytes(data[ending]))
  def check(made):
    ends_well(files.read_bytes, put(path, made))

  check()


@pytest.mark.parametrize("ending", [".npz", ".npy"])
def test_token_files(folder, ending):
  path = folder / f"tokens{ending}"
  if ending == ".npz":
    token_file.write_tokens(path, [[1, 2, 3], [4]], {"vocab_size": 9}, [1, 0])
  else:
    np.save(path, np.arange(9, dtype=np.uint16))
  data = path.read_bytes()
  assert token_file.read_tokens(path)

  @fuzz
  @given(changed_bytes(data))
  def check(made):
    ends_well(token_file.read_tokens, put(path, made))

  check()


TENSOR = {"shape": {}, "dtype": "int32", "encoding": "none"}
FEATURES = {
  "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
  "featuresDict": {
    "features": {
      "tokens": {
        "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
        "tensor": TENSOR,
      }
    }
  },
}
INFO = {
  "name": "x",
  "splits": [{"name": "train", "filepathTemplate": "{DATASET}", "shardLengths": ["3"]}],
}


@fuzz
@given(changed(FEATURES), changed(INFO))
def test_metadata_of_data_sets(tmp_path_factory, features, info):
  place = tmp_path_factory.getbasetemp() / "tfds"
  place.mkdir(exist_ok=True)
  put(place / tfds_files.FEATURES, text_of(features))
  put(place / tfds_files.INFO, text_of(info))
  ends_well(tfds_files.check_folder, place)
  for node in (x for x in _nodes(features) if isinstance(x, dict)):
    name = node.get("pythonClassName")
    if ends_well(lambda: tfds_files.check_folder(place) or True):
      assert name is None or name in tfds_files._CLASSES


def _nodes(value):
  yield value
  for below in (
    value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
  ):
    yield from _nodes(below)


INVENTORY = {"state/a": {"bytes": 1, "crc32": 2}, "data/b": {"bytes": 3, "crc32": 4}}


def test_inventories(folder):
  place = folder / "checkpoint"
  place.mkdir()

  @fuzz
  @given(changed(INVENTORY))
  def check(value):
    put(place / inventory.FILE, text_of(value))
    ends_well(inventory.verify, place)

  check()
