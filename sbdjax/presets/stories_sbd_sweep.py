"""Quality against speed of the SBD stories model, over the entropy bound gamma.

  python -m sbdjax sweep --config=preset:stories_sbd_sweep --workdir=runs/sweep

Prompts are the beginnings of validation stories; the judge is the model SBD was fine-tuned from.
"""

from ml_collections import ConfigDict

GAMMAS = (0.0, 0.01, 0.1, 0.2, 0.4, 0.8, 1.5)


def get_config() -> ConfigDict:
  return ConfigDict(
    dict(
      sweep=dict(
        checkpoint="stories260K-sbd", judge="stories260K", num_prompts=60, batch_size=1, repeats=3
      ),
      decoder=dict(name="sbd", block_size=8, rule="eb_entropy", max_tokens=200),
      data=dict(source="stories"),
    )
  )


def get_sweep() -> list[dict]:
  """AR decoding of the same weights, the reference, and one point a gamma."""
  return [{"decoder.name": "ar"}] + [{"decoder.gamma": gamma} for gamma in GAMMAS]
