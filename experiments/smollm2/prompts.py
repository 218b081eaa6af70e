"""Prompts that a chat model is asked to answer, so that a drafting adapter learns its answers.

  python experiments/smollm2/prompts.py --out=runs/prompts.jsonl --gsm8k=gsm8k_train.jsonl \
    --mbpp=mbpp.jsonl --texts wiki.txt.xz webtext.jsonl stories.txt.xz

Questions of GSM8K's training split and of MBPP as they are, and templates over passages of texts
(plain documents with <|endoftext|> between them, or .jsonl with `text`): summaries, questions about a
passage, translations, rewrites, and things to write about a first sentence. One JSON object a line:
`kind` and `prompt`. Nothing here comes from a benchmark that decoding is measured on.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from sbdjax.data import files

# kind -> templates; {passage}: some sentences, {sentence}: one.
TEMPLATES: dict[str, tuple[str, ...]] = {
  "summary": (
    "Summarize: {passage}",
    "Summarize the following text in two sentences.\n\n{passage}",
    "What is the main idea of this text?\n\n{passage}",
    "Give three key points of the following passage.\n\n{passage}",
  ),
  "passage": (
    "{passage}\nWhat is this passage about, and who or what is mentioned in it?",
    "{passage}\nWhat happened, and why?",
    "Answer from the passage only.\n\nPassage: {passage}\n\nQuestion: What are the most important facts?",
    "{passage}\nWrite one question that this passage answers, and its answer.",
  ),
  "translation": (
    "Translate English to French: {sentence}",
    "Translate English to German: {sentence}",
    "Translate the following sentence to Spanish: {sentence}",
    "Say the same in other words, in English: {sentence}",
  ),
  "rewrite": (
    "Rewrite the following text in simple words.\n\n{passage}",
    "Correct the grammar of this text and print the result.\n\n{passage}",
    "Turn this text into a list of bullet points.\n\n{passage}",
    "Rewrite this text as a letter to a friend.\n\n{passage}",
  ),
  "writing": (
    "Explain to a child what this means: {sentence}",
    "Write a short blog post that begins with this sentence: {sentence}",
    "Is the following true? Explain your answer. {sentence}",
    "Write a short story about this: {sentence}",
    "Write a polite email about the following. {sentence}",
    "What should one know about this? {sentence}",
  ),
}
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def questions(path: str, field: str) -> list[str]:
  """A field of every line of a .jsonl file."""
  lines = files.read_text(pathlib.Path(path)).splitlines()
  return [json.loads(line)[field] for line in lines if line.strip()]


def documents(path: str) -> list[str]:
  """The texts of a file."""
  file = pathlib.Path(path)
  if ".jsonl" in file.suffixes:
    return [str(document.body) for document in files.read_jsonl(file)]
  return [str(document.body) for document in files.read_documents(file, "<|endoftext|>")]


def sentences(text: str) -> list[str]:
  """The sentences of a document that look like ones."""
  found = _SENTENCE_END.split(" ".join(text.split()))
  return [s for s in found if 40 <= len(s) <= 300 and s[0].isupper() and s[-1] in ".!?"]


def passage(found: Sequence[str], start: int, size: int) -> str:
  """Sentences from `start` on, of about `size` characters together."""
  taken: list[str] = []
  for sentence in found[start:]:
    if taken and sum(map(len, taken)) + len(sentence) > size:
      break
    taken.append(sentence)
  return " ".join(taken)


def asked(texts: Sequence[str], count: int, rng: np.random.Generator) -> Iterator[dict[str, str]]:
  """`count` filled templates, each over another text."""
  kinds = list(TEMPLATES)
  made = 0
  for i in rng.permutation(len(texts)):
    found = sentences(texts[i])
    if len(found) < 4:
      continue
    kind = kinds[made % len(kinds)]
    template = TEMPLATES[kind][int(rng.integers(len(TEMPLATES[kind])))]
    start = int(rng.integers(len(found) - 2))
    size = int(rng.integers(150, 400))
    prompt = template.format(passage=passage(found, start, size), sentence=found[start])
    yield {"kind": kind, "prompt": prompt}
    made += 1
    if made == count:
      return


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", required=True, help=".jsonl to write")
  parser.add_argument("--gsm8k", required=True, help="training split, .jsonl with `question`")
  parser.add_argument("--mbpp", required=True, help=".jsonl with `text`")
  parser.add_argument("--texts", required=True, nargs="+", help="files of documents")
  parser.add_argument(
    "--counts", type=int, nargs=3, default=(400, 200, 800), help="of GSM8K, MBPP and templates"
  )
  parser.add_argument("--without", default="", help=".jsonl of prompts to leave out")
  parser.add_argument("--seed", type=int, default=0)
  args = parser.parse_args(argv)
  rng = np.random.default_rng(args.seed)
  prompts: list[dict[str, str]] = []
  for kind, field, count in (
    ("gsm8k", "question", args.counts[0]),
    ("mbpp", "text", args.counts[1]),
  ):
    every = questions(getattr(args, kind), field)
    chosen = rng.permutation(len(every))[:count]
    prompts += [{"kind": kind, "prompt": every[i]} for i in chosen]
  share = -(-args.counts[2] // len(args.texts))
  for path in args.texts:
    prompts += list(asked(documents(path), share, rng))
  if args.without:
    taken = set(questions(args.without, "prompt"))
    prompts = [x for x in prompts if x["prompt"] not in taken]
  # Any part of the file is a sample of the whole.
  lines = [json.dumps(prompts[i]) for i in rng.permutation(len(prompts))]
  text = "\n".join(lines) + "\n"
  files.write_atomically(args.out, lambda file: file.write(text.encode()))
  print(f"wrote {args.out}: {len(lines)} prompts")
  return 0


if __name__ == "__main__":
  sys.exit(main())
