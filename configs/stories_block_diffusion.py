r"""Fine-tunes stories260K (a real 260K-parameter Llama) into a block-diffusion model.

  python experiments/freedave_stories260k/align.py --tokens=runs/self.npz --out=runs/self_blocks.npz
  python -m sbdjax train --config=configs/stories_block_diffusion.py:4 --workdir=runs/bd4 \
    --config.data.path=runs/self_blocks.npz

Settings: sbdjax/presets/stories_block_diffusion.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_block_diffusion as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
