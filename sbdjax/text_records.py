"""One decoded text as a JSON object: what `generate --json` prints and a training run keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sbdjax import prompts
from sbdjax.data.number_tokenizer import NumberTokenizer
from sbdjax.decode.generate import Result
from sbdjax.decode.method import Method
from sbdjax.decode.stops import before_stop
from sbdjax.interop.pretrained import Pretrained


def of_result(
  result: Result,
  model: Pretrained,
  method: Method,
  settings: dict[str, Any],
  stop: Sequence[str] = (),
) -> dict[str, Any]:
  """The object of one prompt; the verb `generate` explains its fields.

  Args:
    result: of decoding it.
    model: whose tokenizer writes the text.
    method: that decoded it.
    settings: what else the record says, last.
    stop: strings that ended it.
  """
  text, tokenizer = None, model.need_tokenizer()
  more: dict[str, Any] = {}
  if not isinstance(tokenizer, NumberTokenizer):
    pieces = prompts.pieces_after(tokenizer, result.prompt_tokens, result.text_tokens)
    text = before_stop("".join(pieces), stop)
    more |= {"pieces": pieces, "prompt_text": tokenizer.decode(result.prompt_tokens)}
  return (
    {
      "prompt_tokens": result.prompt_tokens,
      "tokens": result.tokens,
      "valid_tokens": result.valid,
      "text": text,
      **costs(result, method),
      "reveal_step": result.reveal_step,
      "finish": result.finish,
      "seconds": result.seconds,
      "batch_size": result.batch_size,
    }
    | more
    | settings
  )


def costs(result: Result, method: Method) -> dict[str, Any]:
  """What a row has cost, for records; `nfe` has the prompt's forwards where the method counts them."""
  nfe = result.nfe + method.counts_prefill * result.prefill_nfe
  found: dict[str, Any] = {
    "nfe": nfe,
    "prefill_nfe": result.prefill_nfe,
    "query_tokens": result.query_tokens,
    "drafted": result.drafted,
    "accepted": result.accepted,
    "tpf": result.valid / nfe if nfe else 0.0,
  }
  if result.causal_passes is not None:
    found |= {"trunk_passes": result.trunk_passes, "causal_passes": result.causal_passes}
  return found
