r"""A drafting adapter for SmolLM2-135M-Instruct, trained on answers that the model itself wrote.

  python -m sbdjax train --config=configs/smollm2_sbd_adapter.py --workdir=runs/smollm2_adapter \
    --config.data.path=runs/smollm2_text/tokens.npz

Settings: sbdjax/presets/smollm2_sbd_adapter.py. Copy this file for a config of your own.
"""

from sbdjax.presets import smollm2_sbd_adapter as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
