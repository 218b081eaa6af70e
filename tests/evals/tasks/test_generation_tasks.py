"""Tasks whose answers are texts: what is extracted of them, and what programs are made of them."""

import dataclasses
import json
import lzma

import pytest

from sbdjax.errors import UsageError
from sbdjax.evals.sandbox import Sandbox
from sbdjax.evals.tasks import instructions, mathematics, programs
from sbdjax.evals.tasks.files import Files
from tests.helpers import require_shared

TASKS = {
  task.full_name: task for module in (mathematics, programs, instructions) for task in module.TASKS
}
SMALL = Sandbox(seconds=5.0, memory=512 << 20)


def items(name, **chosen):
  return TASKS[name].items(Files(require_shared("data")), **chosen)


def write(folder, **files):
  for name, rows in files.items():
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path = folder / name.replace("__", ".")
    with (lzma.open if path.suffix == ".xz" else open)(path, "wt") as file:
      file.write(text)
  return Files(folder)


def test_names_are_of_one_task_each():
  assert len(TASKS) == sum(len(m.TASKS) for m in (mathematics, programs, instructions))
  assert {"gsm8k", "gsm8k:trado", "math500:dream", "humaneval:jacobi_forcing"} <= set(TASKS)


@pytest.mark.parametrize(
  ("answer", "strict", "flexible"),
  [
    ("so 9 + 9 = 18\n#### 18", 1, 1),
    ("#### $1,8", 0, 1),
    ("It is 18 dollars", 0, 1),
    ("18, no: 19", 0, 0),
    ("#### 18.", 1, 1),
    ("", 0, 0),
  ],
)
def test_gsm8k_counts_what_follows_the_mark_or_the_last_number(tmp_path, answer, strict, flexible):
  docs = [{"question": "How?", "answer": "9 and 9 is <<9+9=18>>18.\n#### 18"}]
  files = write(tmp_path, gsm8k_test__jsonl=docs)
  (item,) = TASKS["gsm8k"].items(files, num_fewshot=0)
  assert item.prompt.text() == "Question: How?\nAnswer:"
  assert TASKS["gsm8k"].score(item, answer) == {
    "strict_match": strict, "flexible_extract": flexible,
  }  # fmt: skip


def test_gsm8k_shows_solved_examples(tmp_path):
  one = {"question": "Q1", "answer": "A1\n#### 1"}
  files = write(tmp_path, gsm8k_test__jsonl=[one], gsm8k_train__jsonl__xz=[one] * 3)
  (item,) = TASKS["gsm8k"].items(files, num_fewshot=1)
  shot = "Question: Q1\nAnswer: A1\n#### 1\n\n"
  assert item.prompt.text() == f"{shot}Question: Q1\nAnswer:"
  (item,) = TASKS["gsm8k_cot"].items(files)
  text = item.prompt.text()
  assert text.count("Q: ") == 9 and text.count(" The answer is ") == 8
  assert text.endswith("The answer is 8.\n\nQ: Q1\nA:")


@pytest.mark.parametrize(
  ("text", "box"),
  [
    ("so \\boxed{12}", "12"),
    ("\\boxed{1}, no, \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
    ("\\boxed{1} and \\boxed{2", None),
    ("12", None),
  ],
)
def test_the_last_closed_box(text, box):
  assert mathematics.last_box(text) == box


def test_wordings_of_papers(tmp_path):
  docs = [{"prompt": f"Add.{mathematics._BOXED_LAST}", "answer": "3"}]
  files = write(tmp_path, math500__jsonl=docs)
  prompts = {v: TASKS[f"math500:{v}"].items(files)[0] for v in ("trado", "dream", "sbd")}
  assert prompts["trado"].prompt.messages() == [{"role": "user", "content": docs[0]["prompt"]}]
  system, user = prompts["dream"].prompt.messages()
  assert system["role"] == "system" and user["content"].endswith("This is the problem:\nAdd.")
  assert [p.max_tokens for p in prompts.values()] == [2048, 1600, 32768]


def test_every_answer_of_the_files_is_right_and_another_is_not():
  pytest.importorskip("math_verify", reason="needs the extra `eval`")
  chosen = {"math500:trado": 40, "aime24:trado": 6, "aime25:trado": 6, "gsm8k:trado": 10}
  for name, count in chosen.items():
    for item in items(name, limit=count):
      right = {"math_verify": 1.0}
      assert TASKS[name].score(item, f"Thus \\boxed{{{item.reference}}}.") == right, item
      assert TASKS[name].score(item, "\\boxed{1234567}") != right
      assert TASKS[name].score(item, str(item.reference)) != right  # not in a box


HUMAN = {
  "task_id": "HumanEval/0",
  "prompt": "import math\n\n\ndef add(a, b):\n    '''Adds.'''\n",
  "entry_point": "add",
  "test": "def check(f):\n    assert f(1, 2) == 3",
}
RIGHT, WRONG = "    return a + b\n", "    return a - b\n"


@pytest.fixture(scope="module")
def sandbox():
  try:
    SMALL.check()
  except UsageError as error:
    pytest.skip(str(error))
  return SMALL


def passes(name, files, sandbox, answer):
  task = programs.runnable(TASKS[name], sandbox)
  return task.score(task.items(files, num_fewshot=0)[0], answer)["pass@1"]


def human_files(folder):
  import gzip

  with gzip.open(folder / "HumanEval.jsonl.gz", "wt") as file:
    file.write(json.dumps(HUMAN) + "\n")
  plus = {"contract": "", "reference": RIGHT, "base_input": [[1, 2]], "atol": 0}
  more = {"task_id": "HumanEval_0", "inputs": [[-5, -6], [0.1, 0.2]]}
  names = {"HumanEvalPlus__jsonl__xz": [plus], "HumanEvalPlusInputs__jsonl__xz": [more]}
  return write(folder, **names)


def test_humaneval(tmp_path, sandbox):
  files = human_files(tmp_path)
  whole = f"{HUMAN['prompt']}{RIGHT}"
  for name, right, wrong in [
    ("humaneval", RIGHT, WRONG),
    ("humaneval_instruct", f"{RIGHT}```\nIt adds.", f"{WRONG}```"),
    ("humaneval:sbd", f"```python\n{whole}```", whole),
    ("humaneval:jacobi_forcing", f"Here:\n```python\n{whole}```", "None."),
    (
      "humaneval:trado",
      f"```python\nx\n```\n```python\ndef add(a, b):\n{RIGHT}```",
      "```python\n```",
    ),
    ("humaneval_plus", RIGHT, "    return 3 if a == 1 else 0\n"),
  ]:
    assert passes(name, files, sandbox, right) == 1.0, name
    assert passes(name, files, sandbox, wrong) == 0.0, name
  # The plus inputs find what HumanEval's own test does not.
  assert passes("humaneval", files, sandbox, "    return 3 if a == 1 else 0\n") == 1.0


def test_mbpp(tmp_path, sandbox):
  doc = {"text": "Add.", "code": "", "test_list": ["assert add(1, 2) == 3"] * 3}
  rows = [doc | {"task_id": 4}, doc | {"task_id": 11}]
  files = write(tmp_path, mbpp__jsonl__xz=rows)
  right = f"def add(a, b):\n{RIGHT}"
  assert passes("mbpp", files, sandbox, right) == 1.0
  assert passes("mbpp", files, sandbox, right.replace("+", "-")) == 0.0
  assert passes("mbpp_instruct", files, sandbox, f"\n{right}```\nand so on") == 1.0
  # As in the harness: what begins with a word has lost it, for it may name a language.
  assert passes("mbpp_instruct", files, sandbox, f"{right}```") == 0.0
  for name in ("mbpp:trado", "mbpp:dream", "mbpp:sbd"):
    assert passes(name, files, sandbox, f"So:\n```python\n{right}```\nIt adds.") == 1.0, name
    assert passes(name, files, sandbox, right) == 0.0, name  # no block of code
  (item,) = TASKS["mbpp:sbd"].items(files)
  assert item.max_tokens == 256 and "Add.\nYour code" in item.prompt.text()
  (item,) = TASKS["mbpp"].items(files, num_fewshot=1)
  assert item.stop == ("[DONE]",) and item.prompt.text().endswith("3\n[BEGIN]\n")
  assert item.prompt.text().count("Add.") == 2 and "[DONE]\n\n" in item.prompt.text()


def test_programs_are_not_run_unasked(tmp_path):
  item = dataclasses.replace(TASKS["humaneval"].items(human_files(tmp_path))[0], reference=None)
  assert TASKS["humaneval"].score(item, "    return 1 / 0\n") == {}


@pytest.mark.long
def test_the_solutions_of_the_files_pass(sandbox):
  """HumanEval+'s references, and MBPP's code; some of HumanEval's own solutions do not."""
  files = Files(require_shared("data"))
  mbpp = programs.runnable(TASKS["mbpp"], sandbox)
  for doc, item in list(zip(mbpp.read(files), mbpp.items(files), strict=True))[::25]:
    assert mbpp.score(item, doc["code"])["pass@1"] == 1.0, item.id
  task = programs.runnable(TASKS["humaneval_plus"], Sandbox(seconds=20.0))
  pairs = list(zip(task.read(files), task.items(files), strict=True))
  for doc, item in pairs[::12]:
    assert task.score(item, doc["plus"]["reference"])["pass@1"] == 1.0, item.id
  doc, item = pairs[22]  # counts True among integers
  assert task.score(item, doc["canonical_solution"])["pass@1"] == 0.0
