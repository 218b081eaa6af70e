r"""Fine-tunes stories260K (a real 260K-parameter Llama) into a Set Block Decoding model.

  python -m sbdjax train --config=configs/stories_sbd.py --workdir=runs/sbd
  python -m sbdjax train --config=configs/stories_sbd.py:self --workdir=runs/sbd_self \
    --config.data.path=runs/self.npz

Settings: sbdjax/presets/stories_sbd.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_sbd as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
