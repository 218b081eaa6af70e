"""Training: `sbdjax.train(config, workdir)`, and what it is built of.

The package itself is the function `build.train`, so that a run is one line:

    state = sbdjax.train(sbdjax.presets.load("stories_sbd"), "runs/mine")

In parts: `settings` reads a config, `build` makes model, data and task of it, `trainer` is the loop
around the pure `step`, `parallel` lays it out over devices, `checkpoints` keeps it.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _CallablePackage(types.ModuleType):
  """A package that can be called: `sbdjax.train` names both the function and the folder."""

  def __call__(self, config: Any, workdir: Any) -> Any:
    from sbdjax.train import build

    return build.train(config, workdir)


sys.modules[__name__].__class__ = _CallablePackage
