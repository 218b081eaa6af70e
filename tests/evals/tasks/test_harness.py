"""Requests and metrics of lm-evaluation-harness's own tasks, given the same documents; its adapter.

Needs the extra `eval` (`make harness`). The documents are some that were written for these tests, and the
published ones where they lie beside the project.
"""

import importlib
import pathlib
import types

import numpy as np
import pytest

from sbdjax.evals.tasks import registry
from sbdjax.evals.tasks.files import Files
from sbdjax.evals.tasks.run import outcome
from sbdjax.evals.tasks.task import Rolling, Scored
from sbdjax.interop.pretrained import load_pretrained
from tests.cli import checkpoints
from tests.evals.tasks import documents, written
from tests.helpers import shared_dir

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra `eval`: lm_eval is not installed")
datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.long
COUNT = 24


def arc(doc):
  text = doc["query"].removeprefix("Question: ").removesuffix("\nAnswer:")
  labels = list("ABCDE"[: len(doc["choices"])])
  choices = {"label": labels, "text": doc["choices"]}
  return {
    "question": text,
    "question_stem": text,
    "choices": choices,
    "answerKey": labels[doc["gold"]],
  }


def hellaswag(doc):
  """The harness's fields: a title, and two parts of a context that are joined there."""
  title, _, text = doc["query"].partition(": ")
  before, after = text, ""
  if text[-1] not in ".!?\"')":
    before, after = text[: text.rindex(". ") + 1], text[text.rindex(". ") + 2 :]
  parts = {"activity_label": title, "ctx_a": before, "ctx_b": after}
  return parts | {"endings": doc["choices"], "label": str(doc["gold"])}


def commonsense_qa(doc):
  asked = doc["question"]
  texts = [c["text"] for c in asked["choices"]]
  choices = {"label": list("ABCDE"), "text": texts}
  return {"question": asked["stem"], "choices": choices, "answerKey": doc["answerKey"]}


# Ours -> the harness's file of its task, and its document for one of ours.
TASKS = {
  "arc_easy": ("arc/arc_easy.yaml", arc),
  "arc_challenge": ("arc/arc_challenge.yaml", arc),
  "openbookqa": ("openbookqa/openbookqa.yaml", arc),
  "hellaswag": ("hellaswag/hellaswag.yaml", hellaswag),
  "piqa": ("piqa/piqa.yaml", lambda doc: doc),
  "winogrande": ("winogrande/default.yaml", lambda doc: doc),
  "boolq": (
    "super_glue/boolq/default.yaml",
    lambda doc: doc | {"label": int(doc["answer"])},
  ),
  "commonsense_qa": ("commonsense_qa/default.yaml", commonsense_qa),
  "lambada_openai": (
    "lambada/lambada_openai.yaml",
    lambda doc: {"text": f"{doc['context']} {doc['continuation']}"},
  ),
  "wikitext": ("wikitext/wikitext.yaml", lambda doc: doc),
  "mmlu": ("mmlu/default/mmlu_{subject}.yaml", lambda doc: doc),
  "mmlu_continuation": ("mmlu/continuation/mmlu_{subject}.yaml", lambda doc: doc),
}
# Where documents of both sources are next to each other.
OFFSETS = {"hellaswag": 3230}
SHOTS = 3


def harness_task(file, docs, shots=()):
  """The harness's task on these documents, in place of those of the hub."""
  loader = importlib.import_module("lm_eval.tasks._yaml_loader")
  task = importlib.import_module("lm_eval.api.task")
  path = pathlib.Path(lm_eval.__file__).parent / "tasks" / file
  config = dict(loader.load_yaml(path, resolve_func=True))
  config = {k: v for k, v in config.items() if k not in ("tag", "group", "include")}
  rows = datasets.Dataset.from_list(list(docs))
  splits = ("train", "validation", "test")
  found = {name: rows for name in splits} | {"dev": datasets.Dataset.from_list(list(shots or docs))}
  config["custom_dataset"] = lambda **_: found
  built = task.ConfigurableTask(config=config)
  built.set_config(key="num_fewshot", value=SHOTS if shots else 0)
  built.set_fewshot_seed(1234)
  return built


WRITTEN, PUBLISHED = "written", "published"
SHARED = shared_dir()
SOURCES = [WRITTEN] + [PUBLISHED] * (SHARED is not None and (SHARED / "data").is_dir())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  """Source of documents -> its folder."""
  return {
    WRITTEN: written.write(tmp_path_factory.mktemp("data")),
    PUBLISHED: SHARED and SHARED / "data",
  }


def cases(name, folder, first=0):
  """(harness's task, our items) of groups of documents: one, or one a subject.

  Args:
    first: number of the first document.
  """
  files = Files(folder)
  task = registry.find(name)
  file, convert = TASKS[name]
  docs = list(task.read(files))
  if not name.startswith("mmlu"):
    some = docs[first : first + COUNT]
    items = task.items(files, offset=first, limit=COUNT)
    yield harness_task(file, [convert(doc) for doc in some]), items
    return
  pool = list(task.shots.read(files))
  for subject in written.SUBJECTS:
    numbers = [i for i, doc in enumerate(docs) if doc["subject"] == subject][:4]
    shots = [doc for doc in pool if doc["subject"] == subject]
    items = [task.items(files, num_fewshot=SHOTS, offset=i, limit=1)[0] for i in numbers]
    yield harness_task(file.format(subject=subject), [docs[i] for i in numbers], shots), items


def requests_of(item, **how):
  return [(item.text,)] if isinstance(item, Rolling) else [tuple(r) for r in item.requests(**how)]


def scores(count, rng):
  return [(float(x), bool(rng.integers(2))) for x in -10 * rng.random(count)]


def first_of(name, source):
  return OFFSETS.get(name, 0) if source == PUBLISHED else 0


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", TASKS)
def test_requests_and_metrics_are_the_harness_s(name, source, data):
  task, rng = registry.find(name), np.random.default_rng(0)
  ours, theirs = [], []
  for built, items in cases(name, data[source], first_of(name, source)):
    built.build_all_requests()
    groups = {}
    for instance in built.instances:
      groups.setdefault(instance.doc_id, []).append(instance)
    assert len(groups) == len(items)
    for item, group in zip(items, groups.values(), strict=True):
      assert requests_of(item) == [tuple(i.args) for i in group]
      answers = scores(len(group), rng)
      scored = [Scored(x, greedy, 1) for x, greedy in answers]
      rolling = isinstance(item, Rolling)
      ours.append(task.score(item, scored[0] if rolling else scored))
      theirs.append(
        built.process_results(group[0].doc, [a[0] for a in answers] if rolling else answers)
      )
    aggregate = built.aggregation()
  found = outcome(task.metrics, ours).metrics
  assert set(theirs[0]) <= set(found)
  for metric in theirs[0]:
    expected = aggregate[metric]([values[metric] for values in theirs])
    assert found[metric].value == pytest.approx(float(expected)), metric


def template(messages, add_generation_prompt=True):
  return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<bot>" * add_generation_prompt


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("multiturn", [True, False])
@pytest.mark.parametrize("name", ["arc_easy", "winogrande", "mmlu"])
def test_conversations_are_the_harness_s(name, multiturn, source, data):
  for built, items in cases(name, data[source], first_of(name, source)):
    how = dict(apply_chat_template=True, chat_template=template, fewshot_as_multiturn=multiturn)
    built.build_all_requests(**how)
    expected = [tuple(i.args) for i in built.instances]
    ours = [r for item in items for r in requests_of(item, template=template, multiturn=multiturn)]
    assert ours == expected


def evaluate(adapter, name, **config):
  """The harness's `simple_evaluate` on two made-up documents."""
  rows = datasets.Dataset.from_list(
    [
      {"q": "Once upon a time", "c": [" there was", " ."], "g": 0},
      {"q": "Lily", "c": [" was", " sad"], "g": 1},
    ]
  )
  task = importlib.import_module("lm_eval.api.task")
  built = task.ConfigurableTask(
    config={
      "task": name,
      "test_split": "test",
      "doc_to_text": "q",
      "custom_dataset": lambda **_: {"test": rows},
      **config,
    }
  )
  evaluator = importlib.import_module("lm_eval.evaluator")
  return evaluator.simple_evaluate(adapter, tasks=[built], bootstrap_iters=0)


@pytest.fixture(scope="module")
def adapter():
  module = importlib.import_module("sbdjax.evals.lm_eval_adapter")
  found = importlib.import_module("lm_eval.api.registry").get_model("sbdjax")
  assert found is module.SbdjaxLM
  return found.create_from_arg_string("checkpoint=stories260K,decoder.name=ar", {"batch_size": 2})


def test_the_harness_scores_our_models(adapter):
  choice = {"output_type": "multiple_choice", "doc_to_choice": "c", "doc_to_target": "g"}
  found = evaluate(adapter, "choice", target_delimiter="", **choice)
  samples = found["samples"]["choice"]
  sbdjax = importlib.import_module("sbdjax")
  model = load_pretrained("stories260K")
  for sample in samples:
    for (text, more), ((nats, _),) in zip(
      [tuple(a.values()) if isinstance(a, dict) else a for a in _arguments(sample)],
      sample["resps"],
      strict=True,
    ):
      whole, before = (s.nats for s in sbdjax.score(model, [text + more, text]))
      assert float(nats) == pytest.approx(before - whole, abs=1e-3)
  assert found["results"]["choice"]["acc,none"] in (0.0, 0.5, 1.0)


def _arguments(sample):
  return (
    list(sample["arguments"].values())
    if isinstance(sample["arguments"], dict)
    else sample["arguments"]
  )


def test_the_harness_decodes_our_models(adapter):
  kwargs = {"until": [".", "\n"], "max_gen_toks": 40, "do_sample": False, "temperature": 0.0}
  config = {"output_type": "generate_until", "doc_to_target": "q", "generation_kwargs": kwargs}
  found = evaluate(adapter, "text", metric_list=[{"metric": "exact_match"}], **config)
  (first, _) = (sample["resps"][0][0] for sample in found["samples"]["text"])
  assert first == ", there was a little girl named Lily"


def test_the_harness_scores_whole_texts(adapter):
  found = evaluate(adapter, "rolling", output_type="loglikelihood_rolling", doc_to_target="q")
  assert found["results"]["rolling"]["word_perplexity,none"] > 1


def test_arguments_and_chat_templates(tmp_path):
  module = importlib.import_module("sbdjax.evals.lm_eval_adapter")
  errors = importlib.import_module("sbdjax.errors")
  model = module.SbdjaxLM(checkpoints.write_tiny(tmp_path / "tiny.safetensors"))
  assert model.chat_template() == "" and "tiny" in model.tokenizer_name
  with pytest.raises(errors.UsageError, match="no chat template"):
    model.apply_chat_template([{"role": "user", "content": "Hi"}])
  chat = importlib.import_module("sbdjax.data.chat")
  source = (
    "{% for m in messages %}[{{m.content}}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
  )
  model._tokenizer = types.SimpleNamespace(
    chat_template=chat.ChatTemplate({"default": source}, {}, "x")
  )
  turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It"}]
  assert model.chat_template(True) == source
  assert model.apply_chat_template(turns[:1]) == "[Hi]>"
  assert model.apply_chat_template(turns, add_generation_prompt=False) == "[Hi]>It"
  with pytest.raises(errors.UsageError, match="unknown argument decode"):
    module.SbdjaxLM("stories260K", decode="x")
  with pytest.raises(errors.UsageError, match="name a model"):
    module.SbdjaxLM()


def test_documents_stand_in_for_the_real_ones(tmp_path):
  """The made-up files of the fast tests can be read by every task."""
  files = Files(documents.write(tmp_path))
  for name in TASKS:
    task = registry.find(name)
    assert task.items(files, num_fewshot=min(task.num_fewshot, 2))  # as many as each subject has
