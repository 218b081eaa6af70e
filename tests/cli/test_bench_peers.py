"""`bench peers`: contestants, records, and what is missing."""

import json

import pytest

from sbdjax import __main__ as entry
from sbdjax.bench import llama2c, peers, torch_llama
from tests.bench.test_llama2c import FAKE, needs_compiler
from tests.cli import checkpoints

FLAGS = ["--max_tokens=8", "--turns=5", "--read_mib=1"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
  return checkpoints.write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.safetensors")


def record(capsys, *flags):
  assert entry.main(["bench", "peers", *FLAGS, *flags, "--json"]) == 0
  out = capsys.readouterr().out
  assert out.count("\n") == 1
  return json.loads(out)


def test_ours_alone_of_a_random_model(capsys, monkeypatch):
  monkeypatch.setattr(torch_llama, "is_available", lambda: False)
  found = record(capsys, "--random=16x2x40", "--method=ar")
  first, second = found["rows"]
  assert (first["contestant"], second["contestant"]) == ("ours, AR", "ours, ar")
  assert first["tokens"] == second["tokens"] == 8 and second["difference"] is None
  assert first["ratio"] == 1 and second["ratio_low"] <= second["ratio"] <= second["ratio_high"]
  for row in found["rows"]:
    assert row["low"] <= row["tokens_per_second"] <= row["high"]
    assert row["tokens_per_forward"] == 1 and row["threads"] == max(peers.thread_counts())
    assert row["weight_bytes"] == 4 * found["parameters"]  # tied
  assert found["methods"]["ar"] == {"max_tokens": 8, "name": "ar", "temperature": 0.0}
  assert (
    "parity" in found["missing"]["transformers"] and "--llama2c" in found["missing"]["llama2.c"]
  )
  assert found["model"] == "random 16x2x40" and found["start"] == 1 and found["versions"] == {}
  assert {str(n) for n in peers.thread_counts()} == found["read_bandwidth"].keys()
  assert {"git_commit", "packages", "device"} <= found.keys()


@pytest.mark.long
def test_methods_of_a_mask_token_and_the_table(tiny, capsys):
  methods = ["sbd block_size=3 gamma=50", "sbd_verified block_size=3", "jacobi block_size=3"]
  flags = ["--no_torch", *(f"--method={text}" for text in methods)]
  assert entry.main(["bench", "peers", f"--checkpoint={tiny}", *FLAGS, *flags]) == 0
  out = capsys.readouterr().out
  assert all(len(line) <= 80 for line in out.split("reading")[0].splitlines()[3:])
  words = " ".join(out.split())
  assert "8 tokens, 5 turns, cpu" in words and "gamma=50" in words
  assert "transformers: left out by --no_torch" in words
  assert "reading 1 MiB with 1 thread:" in words
  # Blocks that are revealed at once are another text; those that are verified are AR's.
  assert "all other tokens are those of our AR" in words
  assert "ours, sbd block_size=3 gamma=50, threads" in words
  assert not any(f"ours, {method}, threads" in words for method in methods[1:])


@needs_compiler
def test_llama2c_with_each_number_of_threads(tiny, capsys, monkeypatch):
  monkeypatch.setattr(peers, "thread_counts", lambda: [1, 2])
  found = record(capsys, f"--checkpoint={tiny}", "--no_torch", f"--llama2c={FAKE}")
  ar, *theirs = found["rows"]
  assert [(r["contestant"], r["threads"]) for r in theirs] == [("llama2.c", 1), ("llama2.c", 2)]
  assert [r["tokens_per_second"] for r in theirs] == pytest.approx([100, 200])
  assert [r["tokens_per_forward"] for r in theirs] == [1, 1]
  for row in theirs:  # the fake makes tokens 2, 3, ... whatever the weights
    difference = row["difference"]
    assert difference["token"] == 2 + difference["index"] != difference["reference"]
    assert difference["logit_gap"] > 0
    assert row["weight_bytes"] == 4 * found["parameters"]
  assert "-Ofast" in found["versions"]["llama2.c"]["flags"] and "llama2.c" not in found["missing"]
  assert ar["threads"] == 2


def test_without_a_compiler_llama2c_is_named(tiny, capsys, monkeypatch):
  monkeypatch.setattr(llama2c, "COMPILERS", ("no-such-compiler",))
  found = record(capsys, f"--checkpoint={tiny}", "--no_torch", f"--llama2c={FAKE}")
  assert found["missing"]["llama2.c"] == "no C compiler: install gcc or clang"
  assert [row["contestant"] for row in found["rows"]] == ["ours, AR"]


@pytest.mark.skipif(not torch_llama.is_available(), reason="torch and transformers not installed")
def test_transformers_with_and_without_look_up(tiny, capsys, monkeypatch):
  monkeypatch.setattr(peers, "thread_counts", lambda: [1])
  found = record(capsys, f"--checkpoint={tiny}", "--max_tokens=24", "--lookup=4")
  greedy, lookup = found["rows"][1:]
  assert greedy["contestant"] == "transformers, generate"
  assert lookup["contestant"] == "transformers, prompt look-up 4"
  assert greedy["difference"] is None and lookup["difference"] is None
  assert greedy["tokens"] == lookup["tokens"] == 24
  assert greedy["tokens_per_forward"] == 1 and lookup["tokens_per_forward"] >= 1
  assert found["versions"]["transformers"].keys() == {"torch", "transformers"}


@pytest.mark.parametrize(
  ("flags", "code", "message"),
  [
    (["--random=16M"], 2, "--random=16M (did you mean '15M'?)"),
    (["--random=15M", "--checkpoint=stories260K"], 2, "leave out --checkpoint"),
    (["--method=sdb"], 2, "'sdb' (did you mean 'sbd'?)"),
    (["--method=jacobi block_size"], 2, "write a name and settings"),
    (["--method="], 2, "choose one of ar, "),
    (["--method=jacobi max_tokens=3"], 2, "--max_tokens holds for all"),
    (["--method=jacobi blocksize=3"], 2, "method.blocksize (did you mean 'block_size'?)"),
    (["--method=ar temperature=0.5"], 2, "decodes greedily from left to right"),
    (["--method=mdm"], 2, "decodes greedily from left to right"),
    (["--method=sbd", "--no_torch"], 2, "no mask token"),
    (["--start=512"], 2, "--start=512"),
    (["--turns=2"], 2, "--turns=2: give 5 or more"),
    (["--max_tokens=512"], 2, "exceeds the model's context of 512"),
    (["--llama2c=nowhere", "--no_torch"], 2, "--llama2c=nowhere"),
    (["--checkpoint=nothing"], 1, "no checkpoint at nothing"),
  ],
)
def test_bad_input_is_one_line(capsys, flags, code, message):
  assert entry.main(["bench", "peers", *flags]) == code
  captured = capsys.readouterr()
  assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""
