"""Reveal rules against a reference, hand-made cases, and published reveal sets."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.decode import rules
from sbdjax.errors import UsageError
from tests.helpers import golden_file
from tests.reference import network, reveal

GAMMAS = (0.05, 0.3, 1.0, 4.0)
# (package rule, reference rule, parameters)
RULES = {
  "eb_entropy": (rules.EBEntropy, reveal.eb_entropy, GAMMAS),
  "eb_confidence": (rules.EBConfidence, reveal.eb_confidence, GAMMAS),
  "eb_margin": (rules.EBMargin, reveal.eb_margin, GAMMAS),
  "factor": (rules.Factor, reveal.factor, (0.3, 1.0, 2.0)),
  "confidence_threshold": (rules.ConfidenceThreshold, reveal.confidence_threshold, (0.2, 0.5, 0.9)),
  "entropy_threshold": (rules.EntropyThreshold, reveal.entropy_threshold, GAMMAS),
  "top_k": (rules.TopK, reveal.top_k, (1, 2, 5)),
}
# Rules that reveal more, never less, as their parameter grows.
GROWING = ("eb_entropy", "eb_confidence", "eb_margin", "factor", "entropy_threshold", "top_k")
NAMES = {**{name: rule for name, (rule, _, _) in RULES.items()}, "static_topk": rules.TopK}

_run = jax.jit(lambda rule, logits, masked: rule(logits, masked))


def apply(rule, logits, masked):
  """The rule as an argument of a compiled program, as a sweep runs it: its number is traced."""
  return np.asarray(_run(rule, jnp.asarray(logits, jnp.float32), jnp.asarray(masked)))


def random_case(rows=40, width=7, vocab=6, seed=0):
  """Logits from nearly flat to nearly certain; every number of masks, none included."""
  rng = np.random.default_rng(seed)
  sharpness = rng.uniform(0.1, 9, (rows, width, 1))
  logits = (rng.normal(size=(rows, width, vocab)) * sharpness).astype(np.float32)
  masked = rng.random((rows, width)) < rng.random((rows, 1))
  masked[0], masked[1] = False, True
  return logits, masked


LOGITS, MASKED = random_case()


@pytest.mark.parametrize("name", RULES)
def test_equals_the_papers_wording(name):
  make, reference, values = RULES[name]
  probs = network.softmax(LOGITS.astype(np.float64))
  sizes = set()
  for value in values:
    ours = apply(make(value), LOGITS, MASKED)
    for row in range(len(LOGITS)):
      expected = reference(probs[row], list(np.flatnonzero(MASKED[row])), value)
      assert set(np.flatnonzero(ours[row])) == expected, (value, row)
      sizes.add(len(expected))
  assert len(sizes) > 2  # the cases tell parameters apart


@pytest.mark.parametrize("score", ["margin", "entropy"])
def test_top_k_by_other_scores(score):
  probs = network.softmax(LOGITS.astype(np.float64))
  ours = apply(rules.TopK(3, score), LOGITS, MASKED)
  for row in range(len(LOGITS)):
    expected = reveal.top_k(probs[row], list(np.flatnonzero(MASKED[row])), 3, score)
    assert set(np.flatnonzero(ours[row])) == expected


@pytest.mark.parametrize("name", RULES)
def test_reveals_masked_positions_only_and_at_least_one(name):
  """Even with parameters that allow nothing."""
  make = RULES[name][0]
  for value in (0, 1e-30, 1, 1e9) if name != "top_k" else (1, 99):
    ours = apply(make(value), LOGITS, MASKED)
    assert not (ours & ~MASKED).any()
    np.testing.assert_array_equal(ours.any(axis=1), MASKED.any(axis=1))


@pytest.mark.parametrize("name", ["eb_entropy", "eb_confidence", "eb_margin", "factor"])
def test_the_smallest_parameter_reveals_exactly_one(name):
  """Also where float32 says that every position is certain: gamma = 0 is one token per forward."""
  certain = np.zeros((1, 5, 6), np.float32)
  certain[..., 2] = 200.0
  for logits, masked in ((LOGITS, MASKED), (certain, np.ones((1, 5), bool))):
    if name == "factor" and logits is certain:
      continue  # 1 >= 1 - 0 / (n + 1): certainty passes any factor
    ours = apply(NAMES[name](0.0), logits, masked)
    np.testing.assert_array_equal(ours.sum(axis=1), masked.any(axis=1))


@pytest.mark.parametrize("name", GROWING)
def test_a_larger_parameter_reveals_a_superset(name):
  values = (1, 2, 3, 6) if name == "top_k" else (0.0, 0.01, 0.1, 0.5, 1.5, 5.0)
  sets = [apply(NAMES[name](value), LOGITS, MASKED) for value in values]
  assert all(not (a & ~b).any() for a, b in zip(sets, sets[1:], strict=False))
  assert sets[0].sum() < sets[-1].sum()


def test_a_larger_confidence_threshold_reveals_fewer_until_one_is_left():
  counts = [
    apply(rules.ConfidenceThreshold(tau), LOGITS, MASKED).sum() for tau in (0.1, 0.4, 0.8, 1.1)
  ]
  assert counts == sorted(counts, reverse=True)
  assert counts[-1] == MASKED.any(axis=1).sum()


@pytest.mark.parametrize("name", RULES)
def test_equal_scores_are_taken_leftmost_first(name):
  """All rows alike: with a parameter for one or two, the first masked positions it is."""
  logits = np.broadcast_to(np.log([0.5, 0.3, 0.2]), (1, 6, 3)).astype(np.float32)
  masked = np.array([[False, True, True, False, True, True]])
  h = -sum(p * np.log(p) for p in (0.5, 0.3, 0.2))
  one, two = {
    "eb_entropy": (0.9 * h, 1.5 * h),
    "eb_confidence": (0.9 * h, 1.5 * h),
    "eb_margin": (0.9 * h, 1.5 * h),
    "factor": (1.4, 1.9),
    "confidence_threshold": (0.6, None),
    "entropy_threshold": (0.9 * h, None),
    "top_k": (1, 2),
  }[name]
  assert set(np.flatnonzero(apply(NAMES[name](one), logits, masked)[0])) == {1}
  if two is not None:
    assert set(np.flatnonzero(apply(NAMES[name](two), logits, masked)[0])) == {1, 2}


def by_hand(*probabilities):
  """[1, T, 3] logits whose most probable token has the given probability, the others share."""
  rows = [[p, (1 - p) / 2, (1 - p) / 2] for p in probabilities]
  return np.log(np.array(rows, np.float64)).astype(np.float32)[None]


@pytest.mark.parametrize(
  ("name", "value", "expected"),
  [
    # confidences .99 .6 .9 .8; entropies .063 .950 .394 .639; position 4 is no mask
    ("eb_entropy", 0.06, {0}),
    ("eb_entropy", 0.07, {0, 2}),
    ("eb_entropy", 0.46, {0, 2, 3}),
    ("eb_entropy", 1.09, {0, 2, 3}),
    ("eb_entropy", 1.10, {0, 1, 2, 3}),
    ("eb_confidence", 0.06, {0}),
    ("eb_confidence", 0.07, {0, 2}),
    ("eb_confidence", 0.46, {0, 2, 3}),
    ("factor", 0.2, {0}),  # .9 < 1 - .2 / 3
    ("factor", 0.31, {0, 2}),  # .9 >= 1 - .31 / 3, .8 < 1 - .31 / 4
    ("factor", 0.81, {0, 2, 3}),  # .8 >= 1 - .81 / 4, .6 < 1 - .81 / 5
    ("factor", 2.01, {0, 1, 2, 3}),
    ("confidence_threshold", 0.85, {0, 2}),
    ("confidence_threshold", 0.995, {0}),
    ("entropy_threshold", 0.7, {0, 2, 3}),
    ("entropy_threshold", 0.01, {0}),
    ("top_k", 2, {0, 2}),
    ("top_k", 9, {0, 1, 2, 3}),
  ],
)
def test_cases_worked_out_by_hand(name, value, expected):
  logits = by_hand(0.99, 0.6, 0.9, 0.8, 0.999)
  masked = np.array([[True, True, True, True, False]])
  assert set(np.flatnonzero(apply(NAMES[name](value), logits, masked)[0])) == expected


@pytest.mark.parametrize(
  ("make", "value"),
  [
    (make, -0.1)
    for name, (make, _, _) in RULES.items()
    if name not in ("confidence_threshold", "top_k")
  ]
  + [(rules.TopK, 0)],
)
def test_senseless_parameters_are_refused_in_one_line(make, value):
  with pytest.raises(UsageError) as error:
    make(value)
  assert str(value) in str(error.value) and "\n" not in str(error.value)


# --- published reveal sets -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def published():
  folder = golden_file("unmasking_A.npz").parent
  specs = json.loads((folder / "unmasking_A.json").read_text())["rules"]
  return specs, dict(np.load(folder / "unmasking_A.npz"))


@pytest.mark.parametrize("group", ["main", "long", "ties"])
def test_published_reveal_sets(published, group):
  specs, data = published
  logits, masked = data[f"{group}/logits"], data[f"{group}/masked"]
  assert len(specs) > 20
  for name, spec in specs.items():
    spec = dict(spec)
    make = NAMES[spec.pop("rule")]
    score = spec.pop("score", None)
    (value,) = spec.values()
    rule = make(value) if score is None else rules.TopK(value, score.removeprefix("neg_"))
    ours = apply(rule, logits, masked)
    np.testing.assert_array_equal(ours, data[f"{group}/expected/{name}"], err_msg=name)


# --- rules as arguments of compiled programs -----------------------------------------------------


def test_another_number_traces_nothing_and_another_rule_once():
  """Also of two rules with equal fields, of which each must keep its own program."""
  traced = []

  @jax.jit
  def run(rule, logits, masked):
    traced.append(type(rule))
    return rule(logits, masked)

  for gamma in (0.0, 0.3, 4.0):
    for cls in (rules.EBConfidence, rules.EBMargin, rules.EntropyThreshold):
      ours = run(cls(gamma), LOGITS, MASKED)
      np.testing.assert_array_equal(ours, cls(gamma)(LOGITS, MASKED), err_msg=f"{cls} {gamma}")
  assert traced == [rules.EBConfidence, rules.EBMargin, rules.EntropyThreshold]
  by_score = {str(run(rules.TopK(3, score), LOGITS, MASKED)) for score in ("margin", "entropy")}
  assert len(by_score) == 2 and len(traced) == 5  # a score shapes the program
