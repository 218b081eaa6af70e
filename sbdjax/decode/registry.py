"""Decoding methods and their parts by name.

A name from outside the package is `module:Name`, in place of any registered name; `register` gives
a class from outside a name of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sbdjax.decode import rules, tokens, verify
from sbdjax.decode.any_order import mdm, ssmd, windows
from sbdjax.decode.causal import ar, drafting, lookup, ngram_lookup, sbd, verified_sbd
from sbdjax.decode.diffusion import freedave, network, schedule, static
from sbdjax.decode.jacobi import drafts, jacobi, recycling
from sbdjax.decode.method import Method, Part
from sbdjax.errors import UsageError
from sbdjax.settings import import_object, nearest

METHOD = "name"  # the flat name of the method itself


def _temperature(given: Mapping[str, Any]) -> str | None:
  if "temperature" not in given:
    return None
  return "greedy" if given["temperature"] == 0 else "categorical"


def _threshold(given: Mapping[str, Any]) -> str | None:
  if "threshold" not in given:
    return None
  return "static" if given["threshold"] is None else "threshold"


class Implied(NamedTuple):
  """A kind of part that flat names choose by a number instead of by its name.

  Attributes:
    by: the flat name of that number.
    hint: its type.
    choose: flat names -> name of the part, None where they do not say.
    shown: name of a part without that number -> its flat names and values.
  """

  by: str
  hint: Any
  choose: Callable[[Mapping[str, Any]], str | None]
  shown: Mapping[str, Mapping[str, Any]]


# kind -> name -> class. A new method or part is one entry here, or one call of `register`.
REGISTRY: dict[str, dict[str, type]] = {
  METHOD: {
    "ar": ar.AR,
    "sbd": sbd.SBD,
    "sbd_verified": verified_sbd.VerifiedSBD,
    "static": static.Static,
    "dynamic": static.Dynamic,
    "freedave": freedave.FreeDave,
    "jacobi": jacobi.Jacobi,
    "jacobi_window": jacobi.JacobiWindow,
    "jacobi_multiblock": jacobi.JacobiMultiblock,
    "mdm": mdm.MDM,
    "ssmd": ssmd.SSMD,
  },
  "rule": {
    "eb_entropy": rules.EBEntropy,
    "eb_confidence": rules.EBConfidence,
    "eb_margin": rules.EBMargin,
    "factor": rules.Factor,
    "confidence_threshold": rules.ConfidenceThreshold,
    "entropy_threshold": rules.EntropyThreshold,
    "top_k": rules.TopK,
  },
  "token": {"greedy": tokens.Greedy, "categorical": tokens.Categorical},
  "verify": {"exact_match": verify.ExactMatch, "resample": verify.Resample},
  "drafting": {
    "none": drafting.NoDrafting,
    "alternating": drafting.Alternating,
    "fused": drafting.Fused,
    "fan_out": drafting.FanOut,
  },
  "lookup": {
    "none": lookup.NoLookup,
    "text": lookup.TextLookup,
    "ngrams": ngram_lookup.NGramLookup,
  },
  "cache": {
    "auto": network.AutoCache,
    "none": network.NoCache,
    "block": network.BlockCache,
    "prefix": network.PrefixCache,
    "dual": network.DualCache,
  },
  "schedule": {"static": schedule.StaticSteps, "threshold": schedule.Threshold},
  "draft_init": {"text": drafts.FromText, "vocabulary": drafts.FromVocabulary},
  "pool": {
    "none": recycling.NoPool,
    "ngrams": recycling.NGrams,
    "points": recycling.Points,
  },
  "unmask": {
    "ancestral": mdm.Ancestral,
    "first_hitting": mdm.FirstHitting,
    "top_k": mdm.ByConfidence,
  },
  "window": {
    "cosine": windows.Cosine,
    "linear": windows.Linear,
    "constant": windows.Constant,
    "full": windows.FullWindow,
  },
}

# Flat names say `temperature=0.7` and `threshold=0.9`, not which class that makes.
IMPLIED: dict[str, Implied] = {
  "token": Implied("temperature", float, _temperature, {"greedy": {"temperature": 0.0}}),
  "schedule": Implied("threshold", float | None, _threshold, {}),
}


def register(kind: str, name: str, cls: type) -> type:
  """Gives a method ("name") or a part ("rule", "token", ...) a name for flags, configs and records.

  Args:
    kind: a key of REGISTRY.
    name: not taken yet by another class.
    cls: a `@pytree.dataclass` derived from `Method`, or from the base of that kind of part.

  Returns:
    `cls`.

  Raises:
    UsageError: an unknown kind, a name that is taken, or a class of another kind.
  """
  if kind not in REGISTRY:
    raise UsageError(f"kind={kind!r}{nearest(kind, REGISTRY)}: choose one of {_list(REGISTRY)}")
  _check_class(kind, cls, f"register({kind!r}, {name!r}, ...)")
  if REGISTRY[kind].get(name, cls) is not cls:
    raise UsageError(f"the name {name!r} is taken by {REGISTRY[kind][name].__name__}")
  REGISTRY[kind][name] = cls
  return cls


def find(kind: str, name: str, where: str = "") -> type:
  """The class of a registered name, or of `module:Name`.

  Raises:
    UsageError: there is none; the nearest registered name is given.
  """
  known = REGISTRY[kind]
  if isinstance(name, str) and name in known:
    return known[name]
  where = where or kind
  if not isinstance(name, str) or ":" not in name:
    raise UsageError(
      f"{where}={name!r}{nearest(str(name), known)}: choose one of {_list(known)}, or module:Name"
    )
  cls = import_object(name, where)
  _check_class(kind, cls, f"{where}={name!r}")
  return cls


def name_of(obj: Method | Part) -> str:
  """The registered name of an object's class, else `module:Name`."""
  cls = type(obj)
  for names in REGISTRY.values():
    for name, other in names.items():
      if other is cls:
        return name
  return f"{cls.__module__}:{cls.__qualname__}"


def check_model(method: Method, lm: Any) -> None:
  """Raises UsageError where `method` does not decode this kind of model."""
  if isinstance(lm, method.models):
    return
  fitting = [
    name for name, cls in REGISTRY[METHOD].items() if isinstance(lm, getattr(cls, "models", ()))
  ]
  raise UsageError(
    f"decoder.name={name_of(method)} is not for this kind of model: choose one of {_list(fitting)}"
  )


def _check_class(kind: str, cls: Any, shown: str) -> None:
  fits = isinstance(cls, type) and dataclasses.is_dataclass(cls)
  if kind == METHOD:
    fits = fits and issubclass(cls, Method)
  else:
    fits = fits and issubclass(cls, Part) and cls.kind == kind
  if not fits:
    need = "Method" if kind == METHOD else f"a part of kind {kind!r}"
    raise UsageError(f"{shown} is no @pytree.dataclass derived from {need} (see sbdjax.decode)")


def _list(names: Iterable[str]) -> str:
  return ", ".join(names)
