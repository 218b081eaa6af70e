"""Held-out texts as rows of one length."""

import numpy as np
import pytest

from sbdjax.data.config import DataConfig
from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.errors import UsageError
from sbdjax.evals import held_out


def fasta(tmp_path, *proteins):
  path = tmp_path / "some.fasta"
  path.write_text("".join(f">P{i}\n{protein}\n" for i, protein in enumerate(proteins)))
  return DataConfig(
    source="fasta", path=str(path), tokenizer="esm", packing="crop", split_sizes=(1, 1, 3)
  )


def test_parts_of_a_protein_stand_between_marks_and_follow_one_another(tmp_path):
  config, tokenizer = fasta(tmp_path, "A", "A", "LAGVSER", "LA", "TIDP"), load_tokenizer("esm")
  found = held_out.read(config, "test", tokenizer, 3, 10)
  assert [tokenizer.decode(row[1:-1].tolist()) for row in found.rows_BxL] == ["LAG", "VSE", "TID"]
  assert set(found.rows_BxL[:, 0]) == {tokenizer.bos_id}
  assert set(found.rows_BxL[:, -1]) == {tokenizer.eos_id}
  assert found.given_L.tolist() == [True, False, False, False, True]
  assert found.about() == {"source": [0, 0, 2]}
  assert held_out.read(config, "test", tokenizer, 3, 2).about() == {"source": [0, 0]}


def test_rows_of_a_stream_run_through_documents(tmp_path):
  path = tmp_path / "text8"
  path.write_text("abcdefghij" * 5)
  config = DataConfig(
    source="text8", path=str(path), tokenizer="text8", add_bos=False, split_sizes=(30, 10, 10)
  )
  tokenizer = load_tokenizer("text8")
  found = held_out.read(config, "test", tokenizer, 4, 10)
  assert [tokenizer.decode(row.tolist()) for row in found.rows_BxL] == ["abcd", "efgh"]
  assert not np.any(found.given_L) and found.about() == {}


def test_a_split_without_a_row_is_an_error(tmp_path):
  config = fasta(tmp_path, "A", "A", "LAGVSER", "LA", "TIDP")
  with pytest.raises(UsageError, match="no text of 8 tokens"):
    held_out.read(config, "test", load_tokenizer("esm"), 8, 10)
