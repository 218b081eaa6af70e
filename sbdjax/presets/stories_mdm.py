"""Masked diffusion on stories, from a causal model: the baseline of `stories_ssmd`.

  python -m sbdjax train --config=preset:stories_mdm --workdir=runs/stories_mdm

The five blocks of stories260K with attention in both directions, on rows of 128 tokens cut from a
stream of stories (the embedded ones unless data.path names a file).
"""

from ml_collections import ConfigDict

from sbdjax.presets import stories_sbd


def get_config() -> ConfigDict:
  config = stories_sbd.get_config("raw")
  config.loss = ConfigDict(dict(name="mdm", schedule="linear", weighting="bound"))
  config.update_from_flattened_dict(
    {
      "init.mask_token": True,
      "optim.name": "muon",
      "optim.learning_rate": 6e-3,
      "train.steps": 4000,
      "train.eval_every": 1000,
      "train.checkpoint_every": 1000,
    }
  )
  return config
