"""Tables and figures of this folder's page, from its records.

  python experiments/sbd_stories260k/tables.py --picture=experiments/sbd_stories260k/sweep.png

Prints the tables, which experiments/tables.py writes, and draws the picture.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import pathlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from sbdjax import bootstrap
from sbdjax.bootstrap import Interval
from sbdjax.evals import markdown, paired, plot

HERE = pathlib.Path(__file__).resolve().parent
ORIGINAL, MODEL = "stories260K", "stories260K-sbd"
NTP = "NTP alone"  # the model of `stories_ntp:recipe` in steps.jsonl
BLOCK_SIZE = 8  # where nothing else is said
RULES = {
  "eb_entropy": "entropy bound",
  "eb_confidence": "entropy bound, by confidence",
  "eb_margin": "entropy bound, by margin",
  "factor": "factor",
  "confidence_threshold": "confidence threshold",
  "entropy_threshold": "entropy threshold",
  "top_k": "vanilla: a fixed number",
}
NUMBERS = {"tau": "tau", "f": "f", "gamma": "gamma", "tokens_per_step": "n"}


@functools.cache
def seed_curves() -> ModuleType:
  """experiments/seed_curves.py."""
  path = HERE.parent / "seed_curves.py"
  spec = importlib.util.spec_from_file_location(path.stem, path)
  assert spec and spec.loader
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def lines(name: str) -> list[dict[str, Any]]:
  """Records of a file of this folder."""
  return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


@functools.cache
def points() -> list[dict[str, Any]]:
  """The sweep, with speeds where they are recorded."""
  speeds = HERE / "speeds.jsonl"
  return paired.read(HERE / "points.jsonl", speeds if speeds.exists() else None)


def point(label: str = MODEL, **decoder: Any) -> dict[str, Any]:
  """A point of the sweep; EB decoding by entropy where only gamma is given."""
  if decoder.keys() == {"gamma"}:
    decoder["rule"] = "eb_entropy"
  if "rule" in decoder:
    decoder = {"block_size": BLOCK_SIZE} | decoder
  return markdown.find(points(), label, **decoder)


def ar() -> dict[str, Any]:
  """AR decoding of the fine-tuned model."""
  return point(name="ar")


def original() -> dict[str, Any]:
  """AR decoding of the model it was made from."""
  return point(ORIGINAL, name="ar")


@functools.cache
def cost(gamma: float) -> Interval:
  """Judge NLL of EB decoding above that of AR."""
  return paired.nll_difference(point(gamma=gamma), ar())


@functools.cache
def tuning_cost() -> Interval:
  """Judge NLL of the fine-tuned model's AR above that of the original's."""
  return paired.nll_difference(ar(), original())


@functools.cache
def first_run() -> list[dict[str, Any]]:
  """The same points of the weights of the first run, which were shipped before."""
  return paired.read(HERE / "first_run.jsonl")


def better(gamma: float) -> Interval:
  """Judge NLL of EB decoding against that of the first run's weights, prompt by prompt.

  That the prompts are the same is seen from the original's texts.
  """
  theirs, way = first_run(), dict(rule="eb_entropy", gamma=gamma, block_size=BLOCK_SIZE)
  if not paired.same_text(original(), markdown.find(theirs, ORIGINAL, name="ar")):
    raise ValueError("the original wrote other texts in first_run.jsonl: its prompts are others")
  now, before = point(**way)["each"], markdown.find(theirs, MODEL, **way)["each"]
  columns = [each[name] for each in (now, before) for name in ("judge_nll", "tokens")]
  return bootstrap.relative_difference(*columns)


def fan_out_before() -> Interval:
  """Tokens per forward of verified decoding with the first run's weights."""
  way = dict(name="sbd_verified", drafting="fan_out", block_size=8, candidates=False)
  return paired.tokens_per_forward(markdown.find(first_run(), MODEL, **way))


def cheapest(least: float) -> dict[str, Any]:
  """Of the reveal rules with so many tokens per forward the point with the best text."""
  found = [r for r in points() if "rule" in r["settings"]["decoder"] and r["tpf"] >= least]
  return min(found, key=lambda row: paired.nll_difference(row, ar()).value)


@functools.cache
def natural_points() -> list[dict[str, Any]]:
  """The sweep on prompts as they come."""
  return paired.read(HERE / "natural.jsonl")


def natural() -> str:
  """AR and EB decoding on prompts as they come."""
  own = markdown.find(natural_points(), MODEL, name="ar")
  rows = [r for r in natural_points() if r["settings"]["decoder"]["name"] != "sbd_verified"]
  return markdown.table(HEAD, [row_of(row, own) for row in rows])


@functools.cache
def repeats(label: str = MODEL, **decoder: Any) -> Interval:
  """Share of 4-grams seen before."""
  return paired.repetition(point(label, **decoder))


@functools.cache
def tpf(**decoder: Any) -> Interval:
  return paired.tokens_per_forward(point(**decoder))


@functools.cache
def nll(**decoder: Any) -> Interval:
  return paired.judge_nll(point(**decoder))


def name_of(row: dict[str, Any]) -> str:
  """What a point is called in tables."""
  decoder, label = row["settings"]["decoder"], row["settings"]["sweep"]["label"]
  if decoder["name"] == "ar":
    names = {MODEL: "AR", ORIGINAL: f"AR of the original, {ORIGINAL}"}
    return names.get(label, f"AR of the same training without SBD ({label})")
  if decoder["name"] == "sbd_verified":
    second = " and second choices" if decoder["candidates"] else ""
    return f"verified, {decoder['drafting'].replace('_', '-')}{second}, k = {decoder['block_size']}"
  number = next(n for n in NUMBERS if n in decoder)
  size = "" if decoder["block_size"] == BLOCK_SIZE else f", k = {decoder['block_size']}"
  return f"SBD, {RULES[decoder['rule']]}, {NUMBERS[number]} = {decoder[number]:g}{size}"


HEAD = (
  "decoding", "tokens per forward", "judge NLL", "against AR", "H", "distinct-2", "repeats",
)  # fmt: skip


def row_of(row: dict[str, Any], reference: dict[str, Any]) -> tuple[Any, ...]:
  """Cells of `HEAD`."""
  return (
    name_of(row),
    paired.tokens_per_forward(row).shown(2),
    paired.judge_nll(row).shown(3),
    markdown.against(row, reference),
    f"{row['entropy']:.2f}",
    f"{row['distinct_2']:.3f}",
    paired.repetition(row).shown(3),
  )


def of_rule(entropy: bool) -> list[dict[str, Any]]:
  """Points without a rule or with the entropy bound by entropy, or the others."""
  rule = lambda row: row["settings"]["decoder"].get("rule", "eb_entropy")
  return [row for row in points() if (rule(row) == "eb_entropy") == entropy]


def bounds() -> str:
  """AR, EB decoding over gamma, verified decoding."""
  return markdown.table(HEAD, [row_of(row, ar()) for row in of_rule(True)])


def rules() -> str:
  """The other reveal rules."""
  return markdown.table(HEAD, [row_of(row, ar()) for row in of_rule(False)])


def times(row: dict[str, Any]) -> str:
  """`1.90x [1.86, 1.94]`: tokens per forward."""
  value, bounds = paired.tokens_per_forward(row).shown(2).split(" ", 1)
  return f"{value}x {bounds}"


def told(**decoder: Any) -> str:
  """`1.90x [1.86, 1.94] at +14.5 % [+10.8, +18.5]`."""
  row = point(**decoder)
  return f"{times(row)} at {markdown.percent(paired.nll_difference(row, ar()))}"


def rule_findings() -> str:
  """What the table of rules says, in words."""
  return (
    "By confidence more is had than by entropy at the same price: threshold 0.8 has "
    f"{told(rule='confidence_threshold', tau=0.8)} and factor 0.5 {told(rule='factor', f=0.5)}, the "
    f"entropy bound 0.2 {told(gamma=0.2)}. Two tokens in every forward, whatever the model says of "
    f"them (vanilla), are {told(rule='top_k', tokens_per_step=2)}; in blocks of 4 "
    f"{told(rule='top_k', tokens_per_step=2, block_size=4)}, where the entropy bound 0.2 has "
    f"{told(rule='eb_entropy', gamma=0.2, block_size=4)}."
  )


def verified(**decoder: Any) -> Interval:
  """Tokens per forward of verified decoding."""
  return tpf(name="sbd_verified", **decoder)


def speeds() -> str:
  """What the clock says, where it was asked; every point in turns of one run."""
  if "speed" not in ar():
    return "Not timed yet on an idle machine: no tokens/s are quoted."
  rows = [
    (
      name_of(row),
      f"{row['tokens_per_second']:,.0f}",
      paired.speed_ratio(row, ar()).shown(2),
    )
    for row in points()
    if "speed" in row
  ]
  return markdown.table(("decoding", "tokens/s", "times AR"), rows)


@functools.cache
def budget() -> list[dict[str, Any]]:
  """AR of the original and of next-token fine-tuning, and the checkpoints of SBD with as many updates."""
  return paired.read(HERE / "steps.jsonl")


@functools.cache
def by_steps() -> dict[str, dict[Any, dict[str, Any]]]:
  """Checkpoint of SBD -> (gamma, or "ar" -> record)."""
  found: dict[str, dict[Any, dict[str, Any]]] = {}
  for row in budget():
    settings = row["settings"]
    gamma = settings["decoder"].get("gamma", "ar")
    found.setdefault(settings["sweep"]["label"], {})[gamma] = row
  return {
    label.removesuffix(" steps"): rows
    for label, rows in found.items()
    if label not in (ORIGINAL, NTP)
  }


def longest() -> dict[Any, dict[str, Any]]:
  """The last checkpoint: gamma, or "ar" -> record."""
  return list(by_steps().values())[-1]


def of_ntp() -> dict[str, Any]:
  """AR of the model that learned next tokens alone."""
  return markdown.find(budget(), NTP, name="ar")


def steps() -> str:
  """Every bound after so many updates, against AR of the same checkpoint."""
  rows = []
  for label, found in by_steps().items():
    for gamma, row in found.items():
      _, *cells = row_of(row, found["ar"])
      rows.append((label, "AR" if gamma == "ar" else f"gamma = {gamma:g}", *cells))
  return markdown.table(("updates", *HEAD), rows)


def steps_findings() -> str:
  """What the table of checkpoints says, in words."""
  (few, first), *_, (many, final) = by_steps().items()
  speeds = [times(found[0.4]) for found in (first, final)]
  prices = [
    markdown.percent(paired.nll_difference(found[gamma], found["ar"]))
    for gamma in (0.0, 0.4)
    for found in (first, final)
  ]
  texts = [paired.judge_nll(found["ar"]).shown(3) for found in (first, final)]
  return (
    f"From {few} to {many} updates gamma 0.4 goes from {speeds[0]} to {speeds[1]} tokens per forward. Its price against AR of the same "
    f"checkpoint goes from {prices[2]} to {prices[3]}, that of gamma 0 from {prices[0]} to {prices[1]}; judge NLL of AR "
    f"itself from {texts[0]} to {texts[1]}."
  )


def baseline_findings() -> str:
  """What the table of AR texts says, in words."""
  theirs = markdown.find(budget(), ORIGINAL, name="ar")
  found = longest()["ar"]
  return (
    f"Fine-tuning on next tokens alone moves the judge NLL of AR's text by {markdown.percent(paired.nll_difference(of_ntp(), theirs))} from "
    f"the original's; SBD with the same budget by {markdown.percent(paired.nll_difference(found, theirs))}, which is "
    f"{markdown.percent(paired.nll_difference(found, of_ntp()))} beside next tokens alone. On held-out documents SBD's next-token loss is "
    f"{held_out('SBD').shown(3)} nats/token against {held_out(NTP).shown(3)}, {markdown.percent(held_out_cost())} document by document."
  )


def baselines() -> str:
  """The text of AR: of the original, after next tokens alone, and after SBD."""
  original_ar = markdown.find(budget(), ORIGINAL, name="ar")
  names = {
    f"the original, {ORIGINAL}": original_ar,
    "fine-tuned on next tokens alone": of_ntp(),
    "fine-tuned by SBD": longest()["ar"],
  }
  rows = [
    (
      name,
      paired.judge_nll(row).shown(3),
      markdown.against(row, original_ar),
      "" if row is original_ar else markdown.against(row, of_ntp()),
      f"{row['entropy']:.2f}",
      f"{row['distinct_2']:.3f}",
      paired.repetition(row).shown(3),
    )
    for name, row in names.items()
  ]
  head = (
    "AR of", "judge NLL", "against the original", "against next tokens alone", "H", "distinct-2", "repeats",
  )  # fmt: skip
  return markdown.table(head, rows)


@functools.cache
def ntp_term_runs() -> list[dict[str, Any]]:
  """Runs with and without the next-token term."""
  return seed_curves().read(HERE / "ntp_term.jsonl")


def above_ntp_shown(run: str, digits: int = 1) -> str:
  """`+2.2 % [+2.0, +2.4]`: next-token loss above that of next tokens alone, mean over seeds, least and most."""
  return seed_curves().shown(
    seed_curves().above(ntp_term_runs(), run, "NTP"), f"+.{digits}f", 100, " %"
  )


def _held_out(model: str) -> dict[str, list[float]]:
  """Sums of every held-out document of the self-told corpus."""
  (found,) = (line for line in lines("held_out.jsonl") if line["model"] == model)
  return found["each"]


@functools.cache
def held_out(model: str) -> Interval:
  """Next-token loss, nats a token, with an interval over documents."""
  each = _held_out(model)
  return bootstrap.ratio_of_sums(each["nll"], each["tokens"])


@functools.cache
def held_out_cost() -> Interval:
  """Next-token loss of SBD above that of next tokens alone, document by document."""
  columns = [_held_out(model)[name] for model in ("SBD", NTP) for name in ("nll", "tokens")]
  return bootstrap.relative_difference(*columns)


def ntp_term() -> str:
  """The next-token term of the loss (paper: Figure 4, Table 2)."""
  curves, runs = seed_curves(), ntp_term_runs()
  rows = []
  for run in ("NTP", "SBD", "SBD without the NTP term"):
    masked = curves.last(runs, run, "eval/masked_loss")
    rows.append(
      (
        run,
        curves.shown(list(curves.last(runs, run).values()), ".3f"),
        "" if run == "NTP" else above_ntp_shown(run),
        curves.shown(list(masked.values()), ".3f") if masked else None,
      )
    )
  head = ("fine-tuning", "NTP validation loss, nats/token", "against NTP", "masked loss")
  return markdown.table(head, rows)


_GAMMAS = (0.0, 0.1, 0.4, 0.8)


def listed(words: Sequence[str]) -> str:
  """`a, b and c`."""
  return f"{', '.join(words[:-1])} and {words[-1]}"


def findings() -> str:
  """What the table says, in words."""
  changes = listed([markdown.percent(better(gamma)) for gamma in _GAMMAS])
  fan_out = verified(drafting="fan_out", block_size=8, candidates=False)
  share = lambda found: found.shown(0, 100).replace(" ", " % ", 1)
  return "\n".join(
    (
      f"* The fine-tuned model's own AR text is {markdown.percent(tuning_cost())} above the original's, in judge "
      "NLL: a price that is paid before any bound.",
      f"* Against the weights of the first run alone ([first_run.jsonl](first_run.jsonl), the same prompts), "
      f"judge NLL at gamma {listed([f'{g:g}' for g in _GAMMAS])} changed by {changes}. Verified decoding (fan-out, "
      f"k = 8) has {fan_out.shown(2)} tokens per forward, {fan_out_before().shown(2)} before; the AR text that it reproduces is another one.",
      f"* Texts repeat themselves: {share(repeats(gamma=0.1))} of the 4-grams at gamma 0.1 and "
      f"{share(repeats(name='ar'))} of AR's were there before in the same text, "
      f"{share(repeats(ORIGINAL, name='ar'))} of the original's. Greedy text that repeats is likely, so "
      "judge NLL alone does not say so.",
    )
  )


def _met(bound: float, found: float) -> str:
  return "met" if found <= bound else "missed"


def aim(least: float, most: float) -> str:
  """`1.8x within 7 %: missed, the nearest is ...`."""
  row = cheapest(least)
  found = paired.nll_difference(row, ar())
  return (
    f"* {least:g}x within {100 * most:.0f} % of the same model's AR judge NLL: {_met(most, found.value)}. The nearest is "
    f"{name_of(row).removeprefix('SBD, ')}: {times(row)} at {markdown.percent(found)}."
  )


def aims() -> str:
  """What was aimed at, and what came out."""
  plain, second = (
    verified(drafting="fan_out", block_size=8, candidates=candidates)
    for candidates in (False, True)
  )
  longer = [
    paired.tokens_per_forward(
      markdown.find(
        lines("drafts.jsonl"),
        "runs/drafts",
        drafting="fan_out",
        block_size=8,
        candidates=candidates,
      )
    ).shown(2)
    for candidates in (False, True)
  ]
  return "\n".join(
    (
      f"* gamma 0 within 2 % of the same model's AR judge NLL: {_met(0.02, cost(0.0).value)}, {markdown.percent(cost(0.0))}.",
      aim(1.8, 0.07),
      aim(2.3, 0.15),
      f"* More than 4.3 tokens per forward by verified decoding, fan-out: {'met' if max(plain.value, second.value) > 4.3 else 'missed'}, {plain.shown(2)}, "
      f"with second choices {second.shown(2)}. That is at no cost in quality. With rows masked whole (above) "
      f"{longer[0]}, with second choices {longer[1]}.",
      f"* NTP validation loss within 3 % of the NTP fine-tuned model: {above_ntp_shown('SBD')} on the raw stories with "
      "200 steps and three seeds (first section). On the self-told corpus with the budget of the table of checkpoints "
      f"{_met(0.03, held_out_cost().value)}: {held_out('SBD').shown(3)} nats/token against {held_out(NTP).shown(3)} on held-out "
      f"documents, {markdown.percent(held_out_cost())}; one run each.",
      "* The AR text of that SBD model is "
      f"{markdown.percent(paired.nll_difference(longest()['ar'], of_ntp()))} of judge NLL beside that of the model that learned "
      "next tokens alone. One run each: other seeds were not trained.",
    )
  )


def draw_sweep(path: pathlib.Path) -> None:
  """AR, EB and verified decoding: quality against tokens per forward."""
  plot.draw_sweep(of_rule(True), path)


def draw_steps(path: pathlib.Path) -> None:
  """Checkpoints of the first run: quality against tokens per forward."""
  plot.draw_sweep([row for found in by_steps().values() for row in found.values()], path)


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--picture", type=pathlib.Path, help="PNG of AR, EB and verified decoding")
  args = parser.parse_args(argv)
  if args.picture:
    draw_sweep(args.picture)
  for table in (bounds, rules, speeds, baselines, steps, ntp_term):
    print(f"{table.__doc__}\n\n{table()}\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
