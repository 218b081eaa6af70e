"""Self-distillation corpus: the base model tells its own stories, at low temperature.

  python experiments/sbd_stories260k/collect.py --out=runs/self_t0.npz --temperature=0

Each story begins with the first tokens of a real TinyStories training story (a random number of
them, which are no targets in training) and is continued by stories260K until it ends a story or
reaches `--seq_len` tokens. The file holds the settings that made it.
"""

import argparse
import pathlib
import sys
import time

import jax
import numpy as np

from sbdjax.data import assets, files, token_file, tokenizers
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.generate import Decoder
from sbdjax.decode.tokens import token_sampler
from sbdjax.interop import llama2c
from sbdjax.lm import make_lm


def openings(
  stories: list[list[int]], passes: int, shortest: int, longest: int, seed: int
) -> list[list[int]]:
  """First `shortest`..`longest` tokens of every story, another random number each pass."""
  rng = np.random.default_rng(seed)
  return [
    story[: int(rng.integers(shortest, longest + 1))]
    for _ in range(passes)
    for story in stories
    if len(story) > shortest
  ]


def tell(lm, params, prompts, limits: Limits, temperature: float, seed: int, batch_size: int):
  """Yields the Result of every prompt, and prints how fast it goes."""
  method, start, tokens = AR(token_sampler(temperature)), time.perf_counter(), 0
  results = Decoder(lm, limits).generate(
    method, params, prompts, jax.random.key(seed), batch_size=batch_size
  )
  for i, result in enumerate(results, start=1):
    yield result
    tokens += len(result.prompt_tokens) + len(result.tokens)
    if i % (10 * batch_size) == 0 or i == len(prompts):
      rate = tokens / (time.perf_counter() - start)
      print(
        f"temperature {temperature}: {i}/{len(prompts)} stories, {rate:.0f} tokens/s", flush=True
      )


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", required=True, help="tokens.npz to write")
  parser.add_argument("--stories", default="asset:stories_train.txt.xz")
  parser.add_argument(
    "--temperature", type=float, nargs="+", default=[0.0], help="one round of stories for each"
  )
  parser.add_argument("--passes", type=int, default=4, help="openings taken from every story")
  parser.add_argument("--shortest", type=int, default=4, help="tokens of the shortest opening")
  parser.add_argument("--longest", type=int, default=48, help="tokens of the longest opening")
  parser.add_argument("--seq_len", type=int, default=256, help="tokens of opening and story")
  parser.add_argument("--batch_size", type=int, default=128)
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args(argv)

  tokenizer = tokenizers.load_tokenizer("tok512")
  documents = files.read_documents(assets.resolve(args.stories), "<|endoftext|>")
  stories = [tokenizer.encode(d.body, bos=True) for d in documents]
  config, params = llama2c.read(assets.path("stories260K.bin"))
  limits = Limits(args.seq_len - args.longest, eos_ids=(tokenizer.bos_id,))

  told, lengths = [], []
  for seed, temperature in enumerate(args.temperature, start=args.seed):
    prompts = openings(stories, args.passes, args.shortest, args.longest, seed)
    for r in tell(make_lm(config), params, prompts, limits, temperature, seed, args.batch_size):
      told.append(r.prompt_tokens + r.tokens)
      lengths.append(len(r.prompt_tokens))
  settings = {k: v for k, v in vars(args).items() if k != "out"}
  settings["stories"] = pathlib.Path(args.stories).name
  meta = dict(settings, model="stories260K", vocab_size=config.vocab_size, eos_id=1)
  token_file.write_tokens(args.out, told, meta, prompt_lengths=lengths)
  print(f"wrote {args.out}: {len(told)} stories, {sum(map(len, told))} tokens")
  return 0


if __name__ == "__main__":
  sys.exit(main())
