r"""Fine-tunes stories260K on exercises with one right answer, by every method that trains.

  python -m sbdjax train --config=configs/stories_exercises.py:ntp --workdir=runs/one_task/ntp
  python -m sbdjax train --config=configs/stories_exercises.py:sbd --workdir=runs/one_task/sbd

Settings: sbdjax/presets/stories_exercises.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_exercises as preset

get_rounds = preset.get_rounds


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.data.kinds = ("add", "sort")
  return config
