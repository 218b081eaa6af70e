r"""Turns stories260K (a real 260K-parameter Llama) into a Jacobi Forcing model, in two rounds.

  python -m sbdjax train --config=configs/stories_jacobi.py --workdir=runs/jacobi
  python -m sbdjax train --config=configs/stories_jacobi.py:once --workdir=runs/jacobi_clean \
    --config.data.path=runs/jacobi/round1/trajectories --config.loss.mask=clean

Settings: sbdjax/presets/stories_jacobi.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_jacobi as preset

get_rounds = preset.get_rounds


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
