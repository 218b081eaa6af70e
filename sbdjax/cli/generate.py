"""Decode prompts: --checkpoint=NAME|FILE|FOLDER --prompt=TEXT [--decoder.name=NAME ...] [--json]

`--decoder.FIELD=VALUE` sets a field of DecoderConfig: name, max_tokens, temperature, top_k, top_p;
for sbd also block_size, rule and what the rule reads (gamma, f, tau, tokens_per_step, score); for
sbd_verified block_size, drafting (alternating, fused, fan_out), points, candidates and verify. For
diffusion models: name static, dynamic or freedave with block_size, steps_per_block or threshold,
score, cache, early_exit, exit_at, cfg_scale, suppress, and for freedave draft_steps, draft_mode,
eager, frugal and carry; attention, shifted and block_size are the checkpoint's own unless given.
Jacobi decoding: name jacobi, jacobi_window or jacobi_multiblock (num_blocks, spawn_ratio, eager) with
block_size, guess (text, vocabulary), verify, and pool (none; ngrams: pool_size, n_gram;
points) with num_candidates and draft_mode.
For masked diffusion: name mdm with unmask (ancestral: steps, noise; first_hitting; top_k), or ssmd
for self-speculative models, with window (cosine: dtau; linear; constant; full), n_inner and
first_equal. Both fill a row in any order: a prompt may be empty, and with --hole=_ every _ of it
stands for a token to be filled in (with --prompt_tokens: the mask token's id).

With --json one object a prompt and line on standard output: prompt_tokens, tokens (the whole canvas
for methods that fill one), valid_tokens (how many of them count: up to the first EOS), text (theirs),
nfe (forwards; for diffusion models all of them, else without the prompt's; for self-speculative ones
trunk_passes and causal_passes as fractions of a forward of all blocks), prefill_nfe (those of the
prompt), query_tokens (the widths of the forwards without the prompt's summed, drafts included),
drafted and accepted (tokens of drafts), tpf (valid tokens a forward of nfe), reveal_step, finish,
seconds (of its batch, compilation apart), prompt_text (of mdm and ssmd, holes filled), and the
settings. Without it a terminal shows the text as it is made; anything else gets the text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import jax
from rich.console import Console

from sbdjax.cli import decoders, flags, live, record
from sbdjax.cli.common import Parser, split_overrides
from sbdjax.cli.decoders import DecoderConfig
from sbdjax.data import assets, files
from sbdjax.data.number_tokenizer import NumberTokenizer
from sbdjax.data.tokenizers import Tokenizer
from sbdjax.decode.generate import Decoder, Result, check_context
from sbdjax.errors import UsageError
from sbdjax.interop.pretrained import Pretrained, load_pretrained
from sbdjax.kernels import backend as attention


def encode_prompt(tokenizer: Tokenizer, text: str, hole: str | None = None) -> list[int]:
  """Token ids of a text prompt, after a bos where the vocabulary has one.

  Args:
    hole: what stands for a mask token in the text; None: nothing does.

  Raises:
    UsageError: a hole, and no mask token.
  """
  if hole and tokenizer.mask_id is None:
    raise UsageError("--hole stands for a mask token, and this checkpoint has none")
  first, *others = text.split(hole) if hole else [text]
  ids = tokenizer.encode(first, bos=tokenizer.bos_id is not None)
  for part in others:
    ids += [tokenizer.mask_id, *tokenizer.encode(part, continues=True)]
  return ids


def _read_prompts(path: str) -> list[str]:
  return [line for line in files.read_text(assets.resolve(path)).splitlines() if line.strip()]


def open_model(checkpoint: str, dtype: str | None, attention_backend: str) -> Pretrained:
  """The checkpoint; one without a vocabulary reads token ids only and shows them as numbers."""
  model = load_pretrained(checkpoint, dtype=dtype, attention=attention_backend)
  if model.tokenizer is None:
    shape = model.lm.config
    model = model._replace(tokenizer=NumberTokenizer(shape.vocab_size, shape.mask_id))
  return model


def find_prompts(args: argparse.Namespace, tokenizer: Tokenizer) -> list[list[int]]:
  """Token ids of the prompts, from whichever of the three flags is given.

  Raises:
    UsageError: none or several of the flags, or ids that cannot be read.
    DataError: the file cannot be read or is empty.
  """
  given = [n for n in ("prompt", "prompts_file", "prompt_tokens") if getattr(args, n) is not None]
  if len(given) != 1:
    found = "none" if not given else " and ".join(f"--{n}" for n in given)
    raise UsageError(f"give one of --prompt, --prompts_file and --prompt_tokens; found {found}")
  if args.prompt_tokens is not None:
    return flags.parse_token_lists(args.prompt_tokens, "--prompt_tokens")
  texts = _read_prompts(args.prompts_file) if args.prompts_file is not None else args.prompt
  return [encode_prompt(tokenizer, text, args.hole) for text in texts]


def check_prompts(prompts: Sequence[Sequence[int]], model: Pretrained, config: DecoderConfig):
  """Raises UsageError for prompts the model cannot continue by `config.max_tokens`."""
  shape, any_order = model.lm.config, decoders.METHODS[config.name].any_order
  if not prompts:
    raise UsageError("there are no prompts: --prompt_tokens is an empty list")
  for i, prompt in enumerate(prompts):
    if not prompt and not any_order:
      raise UsageError(f"prompt {i} is empty: give at least one token")
    if shape.mask_id in prompt and not any_order:
      raise UsageError(f"prompt {i} holds {shape.mask_id}, the mask token: give ordinary tokens")
  check_context(prompts, config.max_tokens, shape.max_seq_len, shape.vocab_size)


def as_record(result: Result, model: Pretrained, settings: dict[str, Any]) -> dict[str, Any]:
  """The JSON object of one prompt."""
  text = None
  if not isinstance(model.tokenizer, NumberTokenizer):
    text = live.text_after(model.tokenizer, result.prompt_tokens, result.text_tokens)
  method = decoders.METHODS[settings["decoder"]["name"]]
  nfe = result.nfe + (result.prefill_nfe if method.counts_prefill else 0)
  more = {}
  if method.any_order and text is not None:
    more["prompt_text"] = model.tokenizer.decode(result.prompt_tokens)
  if result.causal_passes is not None:
    more |= {"trunk_passes": result.trunk_passes, "causal_passes": result.causal_passes}
  return (
    {
      "prompt_tokens": result.prompt_tokens,
      "tokens": result.tokens,
      "valid_tokens": result.valid,
      "text": text,
      "nfe": nfe,
      "prefill_nfe": result.prefill_nfe,
      "query_tokens": result.query_tokens,
      "drafted": result.drafted,
      "accepted": result.accepted,
      "tpf": result.valid / nfe if nfe else 0.0,
      "reveal_step": result.reveal_step,
      "finish": result.finish,
      "seconds": result.seconds,
      "batch_size": result.batch_size,
    }
    | more
    | settings
  )


def title_of(checkpoint: str, config: DecoderConfig) -> str:
  """`stories260K-sbd · sbd block_size=16 rule=eb_entropy gamma=0.1`."""
  shown = {k: v for k, v in decoders.settings_of(config).items() if k not in ("name", "max_tokens")}
  if not config.temperature:
    del shown["temperature"]
  return " ".join([f"{checkpoint} · {config.name}", *(f"{k}={v}" for k, v in shown.items())])


def watch(
  model: Pretrained,
  checkpoint: str,
  config: DecoderConfig,
  prompts: Sequence[Sequence[int]],
  key: jax.Array,
  console: Console,
  seconds_a_frame: float,
) -> list[Result]:
  """The live view, one prompt after the other."""
  eos_ids = model.generation.eos_ids
  sampler = decoders.make_sampler(model.lm, config, eos_ids)
  cells = live.CellTexts(model.tokenizer, model.lm.config.mask_id, eos_ids)
  with console.status("compiling ..."):
    streamer = live.make_streamer(sampler, config, model.params, prompts)
  title = title_of(checkpoint, config)
  return [
    live.play(streamer.frames(i, key), cells, title, console, seconds_a_frame)
    for i in range(len(prompts))
  ]


def tell(
  model: Pretrained,
  checkpoint: str,
  config: DecoderConfig,
  prompts: Sequence[Sequence[int]],
  key: jax.Array,
  console: Console,
  seconds_a_frame: float,
) -> list[Result]:
  """Shows each prompt's text: live in a terminal, printed when it is finished anywhere else."""
  if console.is_terminal:
    return watch(model, checkpoint, config, prompts, key, console, seconds_a_frame)
  results = []
  for result in make_decoder(model, config).generate(
    model.params, prompts, key, decoders.numbers_of(config), batch_size=1
  ):
    print(model.tokenizer.decode(result.prompt_tokens + result.text_tokens))
    print(f"-- {live.summary(result)}\n", flush=True)
    results.append(result)
  return results


def make_decoder(model: Pretrained, config: DecoderConfig) -> Decoder:
  """The compiled sampler of `config`; its numbers are arguments."""
  eos_ids = model.generation.eos_ids
  build = lambda numbers: decoders.make_sampler(model.lm, config, eos_ids, numbers)
  return Decoder(build, allow_empty=decoders.METHODS[config.name].any_order)


def _parser() -> Parser:
  parser = Parser(prog="generate", description=__doc__)
  add = parser.add_argument
  add("--checkpoint", required=True, help="embedded name, checkpoint file or training workdir")
  add("--prompt", action="append", help="text to continue; may be repeated")
  add("--prompts_file", help="text file with one prompt a line")
  add("--prompt_tokens", help="token ids, one list a prompt: [[1,2],[3]]")
  add("--hole", help="what stands for a mask token in a text prompt (mdm and ssmd)")
  add("--json", action="store_true", help="print one JSON object a prompt")
  add("--seed", type=int, default=0, help="of the noise at temperature > 0")
  add("--batch_size", type=int, default=16, help="prompts decoded together (with --json)")
  add("--dtype", choices=("float32", "bfloat16", "float16"), help="instead of the checkpoint's")
  add("--attention_backend", choices=attention.NAMES, default="auto", help="see kernels/backend.py")
  add("--frame_seconds", type=float, default=0.03, help="shortest time a live frame is shown")
  return parser


def main(argv: list[str]) -> int:
  """Runs the verb; returns the exit code."""
  rest, texts = split_overrides(argv, "decoder")
  args = _parser().parse_args(rest)
  flags.at_least(args.batch_size, 1, "--batch_size")
  flags.at_least(args.seed, 0, "--seed")
  config = decoders.from_flags(texts)
  model = open_model(args.checkpoint, args.dtype, args.attention_backend)
  config = decoders.for_checkpoint(config, model.generation, texts)
  # Says so now if the model cannot be decoded this way.
  decoders.make_sampler(model.lm, config, model.generation.eos_ids)
  prompts = find_prompts(args, model.tokenizer)
  check_prompts(prompts, model, config)
  key = jax.random.key(args.seed)
  if not args.json:
    tell(model, args.checkpoint, config, prompts, key, Console(), args.frame_seconds)
    return 0
  decoder = make_decoder(model, config)
  settings = {
    "decoder": decoders.settings_of(config),
    "checkpoint": args.checkpoint,
    "seed": args.seed,
    "device": record.device(),
    "dtype": model.lm.config.compute_dtype,
  }
  numbers = decoders.numbers_of(config)
  for result in decoder.generate(model.params, prompts, key, numbers, args.batch_size):
    compiled = {"compile_seconds": decoder.compile_seconds}
    print(json.dumps(as_record(result, model, settings | compiled)), flush=True)
  return 0
