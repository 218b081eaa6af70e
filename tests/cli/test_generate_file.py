"""A file of prompts: every line is that of its prompt alone, wherever, whenever and with whom it ran."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from sbdjax import Limits, Request
from sbdjax import __main__ as entry
from sbdjax import prompts as prompting
from sbdjax.batch import results
from sbdjax.batch.request import from_line, number_of
from sbdjax.batch.rows import Encoder
from sbdjax.cli import batch_progress, chat, generate_file
from sbdjax.decode import AR, Categorical, decode
from sbdjax.decode.decoding import Decoding
from sbdjax.interop.pretrained import load_pretrained
from sbdjax.share import Share
from tests.cli import checkpoints, test_chat

NOISE = ["--decoder.temperature=1.5", "--decoder.max_tokens=12"]
REQUESTS = [
  {"id": "a", "prompt_tokens": [5, 6]},
  {"id": "s", "prompt_tokens": [7, 8, 9, 10, 11], "seed": 3, "max_tokens": 5},
  {"prompt": "The dog", "eos_ids": [], "max_tokens": 20, "meta": {"of": ["mine"]}},
  {"id": 9, "prompt_tokens": [5, 6], "stop": ["J", "\x01"]},
  {"id": "z", "prompt_tokens": [5, 6]},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
  return checkpoints.write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.safetensors")


def written(path, requests):
  path.write_text("".join(json.dumps(r) + "\n" for r in requests))
  return path


def run(source, out, *more, checkpoint):
  return entry.main(
    ["generate", f"--checkpoint={checkpoint}", f"--prompts={source}", f"--out={out}", *more]
  )


def lines(path):
  return {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
  """The file of prompts, and its results."""
  folder = tmp_path_factory.mktemp("made")
  source = written(folder / "in.jsonl", REQUESTS)
  flags = [*NOISE, "--reveal_order", "--batch_size=2"]
  assert run(source, folder / "out.jsonl", *flags, checkpoint=tiny) == 0
  return source, folder / "out.jsonl"


def test_a_line_is_that_of_its_prompt_alone(tiny, made, capsys):
  found = lines(made[1])
  assert list(found) == ["a", "s", 3, 9, "z"]
  args = [f"--checkpoint={tiny}", "--prompt_tokens=[[7,8,9,10,11]]", "--json", "--seed=3"]
  assert entry.main(["generate", *args, NOISE[0], "--decoder.max_tokens=5"]) == 0
  alone = json.loads(capsys.readouterr().out)
  names = ("text", "nfe", "prefill_nfe", "query_tokens", "drafted", "accepted", "tpf", "finish")
  assert {n: found["s"][n] for n in names} == {n: alone[n] for n in names}
  assert found["s"]["tokens"] == alone["tokens"][: alone["valid_tokens"]]
  assert found["s"]["reveal_step"] == alone["reveal_step"][: alone["valid_tokens"]]
  assert found["s"]["prompt_length"] == 5 and "meta" not in found["s"]


def test_an_id_decides_the_noise_and_a_line_its_ends(tiny, made):
  found, model = lines(made[1]), load_pretrained(tiny)

  sampler = AR(Categorical(1.5)).sampler(model.lm, Limits(12, model.generation.eos_ids))
  run = jax.jit(lambda p, *args: decode(sampler, p, *args).out)

  def alone(number):
    keys = jax.random.fold_in(jax.random.key(0), number)[None]
    out = run(model.params, np.array([[5, 6]], np.int32), np.array([2], np.int32), keys)
    return np.asarray(out.tokens_BxC)[0, 2 : int(out.length_B[0])].tolist()

  assert found["a"]["tokens"] == alone(0x128197CA)  # of sha256("a")
  assert found["z"]["tokens"] == alone(number_of("z")) != found["a"]["tokens"]
  # What it would be, up to the first stop string.
  expected = alone(number_of(9))
  whole = prompting.answer_text(model, [5, 6], expected, ())
  cut = min((whole.find(s) for s in "J\x01" if s in whole), default=len(whole))
  assert found[9]["text"] == whole[:cut] and found[9]["finish"] == "stop"
  assert found[9]["tokens"] == expected[: len(found[9]["tokens"])] != expected
  assert found[9]["nfe"] == len(found[9]["tokens"])
  assert len(found[3]["tokens"]) == 20 and found[3]["meta"] == {"of": ["mine"]}


def test_no_line_depends_on_the_others(tiny, made, tmp_path, capsys):
  """Order, number of slots, shares of processes, and an interruption: the same bytes."""
  source, out = made
  whole, more = out.read_bytes(), [*NOISE, "--reveal_order"]
  assert run(source, tmp_path / "many.jsonl", *more, "--batch_size=5", checkpoint=tiny) == 0
  assert (tmp_path / "many.jsonl").read_bytes() == whole
  named = [dict(r, id=r.get("id", 3)) for r in REQUESTS]
  back = written(tmp_path / "back.jsonl", named[::-1])
  for share in ("1/2", "0/2"):
    flags = [*more, f"--shard={share}", "--batch_size=2"]
    assert run(back, tmp_path / "back_out.jsonl", *flags, checkpoint=tiny) == 0
  assert not (tmp_path / "back_out.jsonl").exists()
  assert entry.main(["merge", str(tmp_path / "back_out.jsonl")]) == 0
  assert "5 lines of 2 parts" in capsys.readouterr().out
  unlike = lambda line: {k: v for k, v in line.items() if k != "request"}  # it has the given id
  found, first = lines(tmp_path / "back_out.jsonl"), lines(out)
  assert list(found) == list(first)[::-1]
  assert {k: unlike(v) for k, v in found.items()} == {k: unlike(v) for k, v in first.items()}


def test_what_has_a_line_is_not_decoded_again(tiny, made, tmp_path, monkeypatch, capsys):
  source, out = made
  path, more = tmp_path / "out.jsonl", [*NOISE, "--reveal_order", "--batch_size=2"]
  add, added = results.Results.add, []

  def interrupted(self, record):
    add(self, record)
    added.append(record)
    if len(added) == 2:
      raise KeyboardInterrupt

  with monkeypatch.context() as patched:
    patched.setattr(results.Results, "add", interrupted)
    assert run(source, path, *more, checkpoint=tiny) == 130
  assert len(lines(path)) == 2 and not results.read_about(path)["finished"]
  capsys.readouterr()
  assert run(source, path, *more, checkpoint=tiny) == 0
  assert path.read_bytes() == out.read_bytes()
  told = capsys.readouterr().out
  assert "in.jsonl: 5 prompts, of 2 to 5 tokens, take 3." in told and "; 2 of them are done" in told
  assert "out.jsonl: 5 lines (2 were there)" in told
  about = json.loads(results.about_path(path).read_text())
  assert about["spent"]["texts"] == 3 and about["finished"] and about["spent"]["programs"] <= 1
  assert run(source, path, *more, checkpoint=tiny) == 0
  assert "all 5 lines were there" in capsys.readouterr().out
  assert run(source, path, *more, "--seed=1", checkpoint=tiny) == 2
  assert "holds results of seed=0, now it is 1: name another --out" in capsys.readouterr().err
  changed = written(tmp_path / "in.jsonl", [dict(REQUESTS[0], max_tokens=3), *REQUESTS[1:]])
  assert run(changed, path, *more, checkpoint=tiny) == 2
  assert "in.jsonl line 1 has changed" in capsys.readouterr().err
  assert path.read_bytes() == out.read_bytes()


def test_conversations_are_encoded_as_by_the_verb_chat():
  model = test_chat.model_of(test_chat.metadata.__wrapped__())
  decoding = Decoding(AR(), 12).for_model(model.lm, model.generation)
  turns = [{"role": "system", "content": "Be"}, {"role": "user", "content": "Hello"}]
  expected = chat.Conversation(model, decoding, turns[:1]).prompt("Hello")
  request = from_line(json.dumps({"messages": turns}), "here")
  assert Encoder(model, decoding).row(request, 0, "here").tokens.tolist() == expected
  said = Encoder(model, decoding, chat=True, system="Be").row(Request("Hello"), 0, "here")
  assert said.tokens.tolist() == expected


@pytest.mark.long
def test_conversations_are_answered_as_by_the_verb_chat(tmp_path, monkeypatch, capsys):
  metadata = test_chat.metadata.__wrapped__()
  file = test_chat.file.__wrapped__(metadata, _Folders(tmp_path))
  monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
  flags = ["--decoder.max_tokens=12"]
  assert entry.main(["chat", f"--checkpoint={file}", "--system=Be", *flags]) == 0
  answer = capsys.readouterr().out.partition("\n-- 12 tokens")[0]
  turns = [{"role": "system", "content": "Be"}, {"role": "user", "content": "Hello"}]
  source = written(tmp_path / "in.jsonl", [{"messages": turns}])
  said = written(tmp_path / "said.jsonl", [{"prompt": "Hello"}])
  assert run(source, tmp_path / "out.jsonl", *flags, checkpoint=file) == 0
  flags += ["--chat", "--system=Be"]
  assert run(said, tmp_path / "said_out.jsonl", *flags, checkpoint=file) == 0
  found = [lines(tmp_path / name)[1] for name in ("out.jsonl", "said_out.jsonl")]
  assert [line["text"] for line in found] == [answer, answer] != ["", ""]


class _Folders:
  def __init__(self, path):
    self._path = path

  def mktemp(self, name):
    (self._path / name).mkdir()
    return self._path / name


def test_prompts_that_the_model_cannot_take(tiny, tmp_path, capsys):
  turn = {"role": "user", "content": "a"}
  bad = [
    ({"prompt_tokens": [1] * 60}, "in.jsonl line 2: the prompt has 60 tokens"),
    ({"prompt_tokens": [1, 600]}, "in.jsonl line 2: the prompt holds token 600"),
    ({"prompt": "a", "eos_ids": [513]}, "in.jsonl line 2: eos_ids holds token 513"),
    ({"messages": [turn]}, "in.jsonl line 2: the checkpoint has no chat template"),
  ]
  for request, message in [*bad, ({"prompt": "a", "stop": "x" * 2000}, "stop strings of about")]:
    source = written(tmp_path / "in.jsonl", [REQUESTS[0], request])
    assert run(source, tmp_path / "out.jsonl", *NOISE, checkpoint=tiny) in (1, 2)
    assert message in capsys.readouterr().err and not (tmp_path / "out.jsonl").exists()
  bad = [request for request, _ in bad]
  source = written(tmp_path / "in.jsonl", [*bad, *REQUESTS])
  out, more = tmp_path / "out.jsonl", [*NOISE, "--bad_prompts=record", "--batch_size=2"]
  assert run(source, out, *more, checkpoint=tiny) == 0
  assert "9 lines, 4 refused" in capsys.readouterr().out
  found = [*lines(out).values()]
  assert [line["finish"] == "refused" for line in found] == [True] * 4 + [False] * 5
  assert found[0]["text"] is None and "exceeds the model's context of 64" in found[0]["problem"]
  assert run(source, out, *more, checkpoint=tiny) == 0  # they are not tried again


@pytest.mark.parametrize(
  ("args", "message"),
  [
    (["--prompts=IN"], "needs --out=OUT.jsonl, where its results go"),
    (["--prompts=IN", "--out=o.txt"], "--out=o.txt: give a name that ends in .jsonl"),
    (["--prompts=IN", "--out=IN"], "is the file of prompts"),
    (["--prompts=IN", "--out=IN/o.jsonl"], "cannot use"),
    (["--prompts=IN", "--out=o.jsonl", "--json"], "--json has no effect with --prompts"),
    (["--prompts=IN", "--out=o.jsonl", "--prompt=a"], "--prompt has no effect with --prompts"),
    (["--prompts=IN", "--out=o.jsonl", "--system=Be"], "--system has no effect without --chat"),
    (["--prompts=IN", "--out=o.jsonl", "--hole=o", "--chat"], "--hole has no effect with --chat"),
    (["--prompts=IN", "--out=o.jsonl", "--shard=2/2"], "--shard=2/2: write I/N"),
    (["--prompts=IN", "--out=o.jsonl", "--stop="], "a stop string is empty"),
    (["--prompts=IN", "--out=o.jsonl", "--hole=o"], "in.jsonl line 3: the prompt holds 512, the mask"),
    (["--prompt=IN"], "is a file, which would be continued as a text: give it as --prompts="),
    (["--prompt=a", "--out=o.jsonl"], "--out is for a file of prompts"),
    (["--prompts_file=TXT"], "holds a JSON object in every line, which is no text: name it in.jsonl"),
  ],
)  # fmt: skip
def test_flags_that_do_not_fit_are_one_line(
  tiny, made, tmp_path, capsys, args, message, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  written(tmp_path / "in.txt", REQUESTS)
  args = [a.replace("IN", str(made[0])).replace("TXT", str(tmp_path / "in.txt")) for a in args]
  code = entry.main(["generate", f"--checkpoint={tiny}", *args, *NOISE])
  found = capsys.readouterr().err
  assert code in (1, 2) and message in found and found.count("\n") == 1


def test_processes_of_a_distributed_runtime_take_their_shares(monkeypatch):
  assert generate_file.share_of(None) == Share(0, 1) and generate_file.share_of("2/3") == Share(
    2, 3
  )
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  monkeypatch.setattr(jax, "process_count", lambda: 4)
  assert generate_file.share_of(None) == Share(1, 4)


def test_progress_without_a_terminal(monkeypatch, capsys):
  monkeypatch.setattr(batch_progress, "_SECONDS_PER_LINE", 0.0)
  now = [100.0]
  monkeypatch.setattr(time, "monotonic", lambda: now[0])
  progress = batch_progress.BatchProgress(1000, 200)
  progress.compiling = lambda: 2.0
  now[0] += 10
  for _ in range(4):
    now[0] += 1
    progress.add(60)
  progress.close()
  last = capsys.readouterr().err.splitlines()[-1]
  assert last == "204 of 1,000 prompts, 20 tokens/s, 0.33 prompts/s, 39:48 left"
  assert batch_progress.clock(3601) == "1:00:01"


@pytest.mark.long
def test_processes_that_are_launched_write_the_same_together(tiny, made, tmp_path):
  source, out = made
  command = [sys.executable, "-m", "sbdjax", "launch", "--processes=3", "--", "generate"]
  command += [f"--checkpoint={tiny}", f"--prompts={source}", f"--out={tmp_path}/out.jsonl"]
  done = subprocess.run([*command, *NOISE, "--reveal_order"], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert entry.main(["merge", str(tmp_path / "out.jsonl")]) == 0
  assert (tmp_path / "out.jsonl").read_bytes() == out.read_bytes()


@pytest.mark.long
def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path):
  requests = [{"prompt": f"Once upon a time {i}", "max_tokens": 4 + i % 17} for i in range(60)]
  source = written(tmp_path / "in.jsonl", requests)

  def start(out):
    command = [sys.executable, "-m", "sbdjax", "generate", "--checkpoint=stories260K"]
    command += [f"--prompts={source}", f"--out={out}", "--batch_size=2", "--decoder.temperature=1"]
    return subprocess.Popen(command, env=os.environ, stdout=-1, stderr=-1, text=True)

  assert start(tmp_path / "whole.jsonl").wait(timeout=300) == 0
  out, kills, there = tmp_path / "out.jsonl", 0, -1
  for _ in range(40):
    process = start(out)
    while process.poll() is None:  # until there is something new
      size = out.stat().st_size if out.exists() else 0
      if size > there and kills < 6 and results.about_path(out).exists():
        process.send_signal(signal.SIGKILL)
        kills, there = kills + 1, size
      time.sleep(0.002)
    code = process.wait()
    process.communicate()
    if code == 0:
      break
  assert code == 0 and kills >= 3
  assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
