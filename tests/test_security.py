"""Nothing that a file names is run, nothing outside of its folder is read, nothing of others is deleted.

Each payload would write the file `ran` beside it.
"""

import json
import os
import pathlib
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from sbdjax import interop
from sbdjax.data import chat, tfds_openwebtext, tfds_text8, token_file
from sbdjax.data.config import DataConfig
from sbdjax.data.tfds_files import FEATURES, INFO
from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.data.trajectories import Example, Store, Writer
from sbdjax.errors import CheckpointError, DataError
from sbdjax.interop import load_pretrained, native, save_pretrained
from sbdjax.interop.hf import tensor_files
from tests.interop import hf_models

EVIL = "evil_of_the_tests"


@pytest.fixture
def evil(tmp_path, monkeypatch):
  """A module that runs when it is imported; a function that says whether it did."""
  place = tmp_path / "evil"
  place.mkdir()
  ran = place / "ran"
  (place / f"{EVIL}.py").write_text(
    f"open({str(ran)!r}, 'w')\nclass Evil:\n  def __init__(self, *a, **k): open({str(ran)!r}, 'w')\n"
  )
  monkeypatch.chdir(place)
  monkeypatch.syspath_prepend(str(place))
  return ran.exists


class Payload:
  """Unpickling it writes `ran`."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return open, (str(self.path), "w")


SETTINGS = dict(block_size=4, num_blocks=1, max_prompt=2, vocab_size=9, examples=1, seed=3)


@pytest.fixture
def trajectories(tmp_path):
  folder = tmp_path / "trajectories"
  folder.mkdir()
  points = np.arange(8).reshape(2, 4)
  writer = Writer(folder, SETTINGS, 1)
  writer.write(0, [Example(np.arange(6), 2, [points])])
  writer.finish()
  return folder


def name_evil(folder, edit=lambda node: node):
  """Lets every feature of a data set be of the evil class."""
  path = folder / FEATURES
  found = json.loads(path.read_text())
  for node in (found, *found.get("featuresDict", {}).get("features", {}).values()):
    node["pythonClassName"] = f"{EVIL}.Evil"
  path.write_text(json.dumps(edit(found)))


EDITS = {
  "as TFDS writes it": lambda node: node,
  "as protobuf also reads it": lambda node: {
    {"pythonClassName": "python_class_name"}.get(k, k): v for k, v in node.items()
  },
  "in the oldest form": lambda node: {"type": f"{EVIL}.Evil", "content": {}},
  "inside of ours": lambda node: {
    "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "featuresDict": {"features": {"tokens": node}},
  },
  "beside ours": lambda node: {
    "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
    "sequence": {"feature": node},
  },
}


@pytest.mark.parametrize("how", EDITS)
def test_trajectories_run_no_code(trajectories, evil, how):
  assert len(Store(trajectories)) == 1
  name_evil(trajectories, EDITS[how])
  with pytest.raises(DataError, match="features.json"):
    len(Store(trajectories))
  assert not evil() and EVIL not in sys.modules


def test_packed_and_other_data_sets_run_no_code(trajectories, tmp_path, evil):
  packed = tfds_openwebtext.folder_of(tmp_path / "data")
  packed.parent.mkdir(parents=True)
  trajectories.rename(packed)
  name_evil(packed)
  with pytest.raises(DataError, match="features.json"):
    tfds_openwebtext.PackedRows(DataConfig(source="packed", path=str(tmp_path / "data")), "train")
  with pytest.raises(DataError, match="features.json"):
    tfds_text8.read_split(tfds_openwebtext.NAME, str(tmp_path / "data"), "train")
  assert not evil() and EVIL not in sys.modules


@pytest.mark.parametrize("place", ["../{DATASET}", "/etc/{DATASET}"])
def test_data_sets_read_their_own_shards(trajectories, place):
  path = trajectories / INFO
  found = json.loads(path.read_text())
  found["splits"][0]["filepathTemplate"] = place
  path.write_text(json.dumps(found))
  with pytest.raises(DataError, match="does not lie in"):
    len(Store(trajectories))


def test_shards_that_are_links_stay_in_the_folder(trajectories, tmp_path):
  (shard,) = trajectories.glob("*.array_record-*")
  shard.rename(tmp_path / "secret")
  shard.symlink_to(tmp_path / "secret")
  with pytest.raises(DataError, match="outside of"):
    len(Store(trajectories))


def test_arrays_are_never_unpickled(tmp_path):
  ran = tmp_path / "ran"
  objects = np.array([Payload(ran)], dtype=object)
  np.save(tmp_path / "x.npy", objects, allow_pickle=True)
  np.savez(tmp_path / "x.npz", tokens=objects, lengths=np.array([1]))
  np.savez(tmp_path / "meta.npz", tokens=np.ones(1, int), lengths=np.array([1]), meta=objects)
  (tmp_path / "bare.npz").write_bytes(pickle.dumps(Payload(ran)))
  for name in ("x.npy", "x.npz", "meta.npz", "bare.npz"):
    with pytest.raises(DataError, match=name):
      token_file.read_tokens(tmp_path / name)
  for name in ("model.bin", "model.pt", "model.ckpt", "model.safetensors", "model.gguf", "model"):
    (tmp_path / name).write_bytes(pickle.dumps(Payload(ran), protocol=2))
    with pytest.raises(CheckpointError):
      load_pretrained(tmp_path / name)
  assert not ran.exists()


def test_one_module_unpickles_and_nothing_imports_it():
  """`interop.unpickle` is a command of its own, by torch's restricted loader."""
  root = pathlib.Path(interop.__file__).parents[1]
  sources = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
  unpickles = re.compile(r"torch\.load\(|pickle\.loads?\(|Unpickler|allow_pickle=True")
  assert {name for name, text in sources.items() if unpickles.search(text)} == {
    "interop/unpickle.py"
  }
  imported = re.compile(r"import .*\bunpickle\b|^from sbdjax\.interop\.unpickle", re.MULTILINE)
  assert not [name for name, text in sources.items() if imported.search(text)]
  assert sources["interop/unpickle.py"].count("weights_only=True)") == 1


@pytest.fixture
def model(tmp_path):
  """A Hugging Face folder that opens."""
  save_pretrained(tmp_path / "model", hf_models.build("llama"))
  return tmp_path / "model"


def edit_json(path, **changes):
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_checkpoint_that_names_classes_runs_none_of_them(model, evil):
  """As transformers does with trust_remote_code."""
  classes = {name: f"{EVIL}.Evil" for name in ("AutoConfig", "AutoModelForCausalLM", "AutoModel")}
  classes |= {name: f"{EVIL}--{EVIL}.Evil" for name in ("AutoTokenizer",)}
  (model / f"{EVIL}.py").write_bytes(pathlib.Path(f"{EVIL}.py").read_bytes())
  edit_json(model / "config.json", auto_map=classes, custom_generate=f"{EVIL}.Evil")
  edit_json(model / "generation_config.json", custom_generate=f"{EVIL}.Evil")
  settings = {"auto_map": classes, "tokenizer_class": f"{EVIL}.Evil"}
  (model / "tokenizer_config.json").write_text(json.dumps(settings))
  assert load_pretrained(model).params is not None
  assert not evil() and EVIL not in sys.modules


def test_names_of_losses_and_sources_in_records_run_nothing(tmp_path, evil):
  """Configs are code and may name `module:Name`; what a run has recorded is not asked for any."""
  workdir = tmp_path / "run"
  (workdir / "checkpoints" / "3").mkdir(parents=True)
  named = f"{EVIL}:Evil"
  sizes = dict(vocab_size=9, num_layers=1, d_model=8, num_heads=2, num_kv_heads=1, d_ff=4)
  resolved = {
    "model": sizes | {"max_seq_len": 8, "norm": named},
    "tokenizer": named,
    "eos_ids": [],
    "generation": {"attention": named},
  }
  record = {"loss": {"name": named}, "data": {"source": named}, "resolved": resolved}
  (workdir / "config.json").write_text(json.dumps(record))
  with pytest.raises(CheckpointError):
    load_pretrained(workdir)
  assert not evil() and EVIL not in sys.modules


def test_a_tokenizer_runs_nothing(tmp_path, evil):
  library = {"version": "1.0", "model": {"type": f"{EVIL}.Evil", "vocab": {}, "merges": []}}
  (tmp_path / "tokenizer.json").write_text(json.dumps(library))
  with pytest.raises(DataError):
    load_tokenizer(str(tmp_path))
  assert not evil()


@pytest.mark.parametrize(
  "source",
  [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
    "{{ lipsum.__globals__['os'].popen('touch ran').read() }}",
    "{{ self.__init__.__globals__.__builtins__.open('ran', 'w') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{% import 'os' as os %}{{ os }}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{{ messages | attr('__class__') }}",
    "{{ [messages] | map(attribute='__class__') | list }}",
  ],
)
def test_templates_reach_nothing(tmp_path, monkeypatch, source):
  monkeypatch.chdir(tmp_path)
  template = chat.ChatTemplate({"default": source}, {}, "here")
  try:
    text = template.render([{"role": "user", "content": "x"}])
  except DataError:
    text = ""
  assert "class" not in text and "root:" not in text and os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["../other/model.safetensors", "ABSOLUTE"])
def test_an_index_names_files_of_its_folder(model, tmp_path, name):
  other = tmp_path / "other"
  other.mkdir()
  (model / tensor_files.SINGLE).rename(other / tensor_files.SINGLE)
  name = str(other / tensor_files.SINGLE) if name == "ABSOLUTE" else name
  stored = safetensors.numpy.load_file(other / tensor_files.SINGLE)
  index = {"weight_map": dict.fromkeys(stored, name)}
  (model / tensor_files.INDEX).write_text(json.dumps(index))
  with pytest.raises(CheckpointError, match="weight_map of .* names"):
    load_pretrained(model)


@pytest.mark.parametrize(
  "name", [tensor_files.SINGLE, "config.json", "generation_config.json", "tokenizer.json"]
)
def test_files_of_a_checkpoint_are_no_links_to_others(model, tmp_path, name):
  if name == "tokenizer.json":
    (model / name).write_text("{}")
  (model / name).rename(tmp_path / "secret")
  (model / name).symlink_to(tmp_path / "secret")
  with pytest.raises((CheckpointError, DataError), match="outside of|no checkpoint|no training"):
    load_pretrained(model)


def test_a_checkpoint_names_no_tokenizer_elsewhere(model, tmp_path):
  (tmp_path / "other").mkdir()
  words = {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "version": "1.0"}
  (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(words))
  edit_json(model / "config.json", sbdjax={"tokenizer": str(tmp_path / "other")})
  with pytest.raises(CheckpointError, match="sbdjax: tokenizer names"):
    load_pretrained(model)
  own = hf_models.build("llama")
  for name in (str(tmp_path / "other"), "../other"):
    settings = {"tokenizer": name, "eos_ids": [1]}
    native.write(tmp_path / "m" / "x.safetensors", own.lm.config, own.params, settings)
    with pytest.raises(CheckpointError, match="only files in it are read"):
      load_pretrained(tmp_path / "m" / "x.safetensors")


def test_saving_deletes_nothing_of_others(tmp_path):
  ours = tmp_path / ".o.tmp"
  ours.mkdir()
  (ours / "thesis.txt").write_text("years of work")
  save_pretrained(tmp_path / "o", hf_models.build("llama"))
  assert (ours / "thesis.txt").read_text() == "years of work"
  assert sorted(os.listdir(tmp_path)) == [".o.tmp", "o"]
  assert (tmp_path / "o").stat().st_mode & 0o055 == 0o055 & ~_umask()


def _umask():
  mask = os.umask(0)
  os.umask(mask)
  return mask


def test_pipes_and_devices_are_no_data(tmp_path):
  """Reading them would hang, or never end."""
  for name in ("x.jsonl", "x.txt", "x.xz", "x.bin", "x.safetensors", "x.gguf", "x.npz"):
    os.mkfifo(tmp_path / name)
  code = f"""
import pathlib
from sbdjax.batch.read import read
from sbdjax.data import files, token_file
from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.errors import SbdjaxError
from sbdjax.interop import load_pretrained
root = pathlib.Path({str(tmp_path)!r})
for opened, name in (
  (files.read_jsonl, "x.jsonl"), (files.read_prompts, "x.txt"), (files.read_bytes, "x.xz"),
  (token_file.read_tokens, "x.npz"), (load_tokenizer, "x.bin"), (load_pretrained, "x.bin"),
  (load_pretrained, "x.safetensors"), (load_pretrained, "x.gguf"),
  (files.read_text, pathlib.Path("/dev/zero")), (lambda path: next(read(path)), "x.jsonl"),
):
  try:
    path = root / name
    opened(str(path) if opened is load_tokenizer else path)
  except SbdjaxError as e:
    assert "no ordinary file" in str(e), e
  else:
    raise AssertionError(name)
print("refused")
"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
  assert done.stdout == "refused\n", done.stderr
