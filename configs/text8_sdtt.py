"""Self-distillation through time on text8: rounds that halve the steps of a masked-diffusion model.

  python -m sbdjax train --config=configs/text8_sdtt.py --workdir=runs/text8_sdtt_1
  python -m sbdjax train --config=configs/text8_sdtt.py:cpu,1 --workdir=runs/text8_sdtt_cpu_1

Settings: sbdjax/presets/text8_sdtt.py. Copy this file for a config of your own.
"""

from sbdjax.presets import text8_sdtt as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.loss.divergence = "forward"
  return config
