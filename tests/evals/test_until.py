"""Answers end before the first stop string."""

import pytest

from sbdjax.decode.causal.ar import AR
from sbdjax.decode.decoding import Decoding
from sbdjax.evals.until import cut, generate_until
from sbdjax.interop.pretrained import load_pretrained


@pytest.mark.parametrize(
  ("stop", "expected"),
  [(["\n", "."], "a"), (["b\n"], "a."), ([], "a.b\nc"), (["x", ""], "a.b\nc"), (["a"], "")],
)
def test_the_first_stop_string_cuts(stop, expected):
  assert cut("a.b\nc", stop) == expected


def test_every_answer_has_its_own_end():
  model = load_pretrained("stories260K")
  prompt = [1, *model.tokenizer.encode("Once upon a time")]
  written = generate_until(
    model, Decoding(AR()), 3 * [prompt], [["."], [" girl"], []], [40, 40, 5], batch_size=3
  )
  assert [w.text for w in written[:2]] == [
    ", there was a little girl named Lily",
    ", there was a little",
  ]
  assert written[2].result.valid == 5 and written[0].text.startswith(written[2].text)
