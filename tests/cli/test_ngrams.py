"""The verb `ngrams`: from collected text to a table that decoding takes."""

import json

import pytest

from sbdjax.cli import generate
from sbdjax.cli import ngrams as verb
from sbdjax.data import ngrams, token_file
from sbdjax.errors import DataError, UsageError


@pytest.mark.long
def test_a_table_of_collected_text_drafts(tmp_path, capsys):
  written = tmp_path / "tokens.npz"
  run = lambda *flags: generate.main(
    ["--checkpoint=stories260K", "--prompt=Once upon", "--json", "--decoder.max_tokens=24", *flags]
  )
  run()
  plain = json.loads(capsys.readouterr().out)
  text = plain["tokens"]
  token_file.write_tokens(written, [text], {"vocab_size": 512}, [3])
  out = tmp_path / "table.safetensors"
  assert verb.main([str(written), f"--out={out}", "--longest=2"]) == 0
  assert f"{len(ngrams.read(out).key_N)} n-grams of up to 2 tokens" in capsys.readouterr().out
  run(
    "--decoder.name=sbd_verified", "--decoder.drafting=none", "--decoder.lookup=ngrams",
    "--decoder.table_tokens=4",
    f"--decoder.lookup_table={out}",
  )  # fmt: skip
  found = json.loads(capsys.readouterr().out)
  assert found["tokens"] == text and found["nfe"] < plain["nfe"] / 2


def test_what_cannot_be_counted_is_refused(tmp_path):
  path = lambda name, meta: token_file.write_tokens(tmp_path / name, [[1, 2]], meta)
  path("a.npz", {"vocab_size": 5}), path("b.npz", {"vocab_size": 6}), path("c.npz", {})
  run = lambda *names, more="--longest=3": verb.main(
    [*(str(tmp_path / n) for n in names), f"--out={tmp_path / 'out'}", more]
  )
  with pytest.raises(DataError, match="different vocabularies: 5 and 6"):
    run("a.npz", "b.npz")
  with pytest.raises(DataError, match="does not say its vocabulary"):
    run("c.npz")
  with pytest.raises(UsageError, match="--entries=0 must be at least 1"):
    run("a.npz", more="--entries=0")
  with pytest.raises(UsageError, match=r"--longest=9 must be in 1\.\.8"):
    run("a.npz", more="--longest=9")
