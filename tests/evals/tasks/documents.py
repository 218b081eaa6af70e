"""A folder of benchmark files with a few made-up documents each, in the form of the real ones."""

import json
import lzma

_MMLU = [
  {
    "question": f" {word}?",
    "subject": s,
    "choices": [f"{word} {x}" for x in "wxyz"],
    "answer": i % 4,
  }
  for i, (word, s) in enumerate(
    [("One", "us_foreign_policy"), ("Two", "anatomy"), ("Three", "us_foreign_policy")] * 4
  )
]
_CHOICES = [
  {
    "id": f"q{i}",
    "query": f"Question: Why {i}?\nAnswer:",
    "choices": ["so", "not so"],
    "gold": i % 2,
  }
  for i in range(5)
]
FILES = {
  "eval/arc_easy_test.jsonl": _CHOICES,
  "eval/arc_challenge_test.jsonl": _CHOICES[:2],
  "eval/openbookqa_test.jsonl": _CHOICES,
  "eval/hellaswag_val.jsonl": [
    {"ind": 4, "query": "Title: A man sits. he", "choices": ["runs.", "stands up."], "gold": 1},
    {"ind": 5, "query": "Title: A man sits.", "choices": ["He runs.", "He stands."], "gold": 0},
  ],
  "eval/piqa_valid.jsonl": [{"goal": "How?", "sol1": "so", "sol2": "thus"}],
  "eval/winogrande_validation.jsonl": [
    {"sentence": "Ann saw Bea as _ slept.", "option1": "Ann", "option2": "Bea", "answer": "2"}
  ],
  "eval/boolq_validation.jsonl": [{"question": "is it", "answer": True, "passage": "It is."}],
  "eval/commonsense_qa_dev.jsonl": [
    {
      "answerKey": "B",
      "id": "c",
      "question": {
        "stem": "Where? ",
        "choices": [{"label": x, "text": f"in {x.lower()}"} for x in "ABCDE"],
      },
    }
  ],
  "eval/lambada_openai.jsonl": [{"context": "She said her", "continuation": "name"}],
  "eval/mmlu_test.jsonl": _MMLU[:6],
  "eval/mmlu_dev.jsonl": _MMLU[6:],
}
_WIKITEXT = (
  " \n = One = \n \n A @-@ b ( c ) . \n \n = = Part = = \n \n d , e \n \n = Two = \n \n f 's \n"
)


def write(folder):
  """Writes them; returns the folder."""
  for name, rows in FILES.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  (folder / "eval" / "piqa_valid-labels.lst").write_text("1\n")
  (folder / "wikitext2").mkdir()
  with lzma.open(folder / "wikitext2" / "valid.txt.xz", "wt") as file:
    file.write(_WIKITEXT)
  return folder
