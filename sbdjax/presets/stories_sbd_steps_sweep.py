"""Quality against speed after different numbers of fine-tuning steps (SBD paper: Figure 5).

  python -m sbdjax sweep --config=preset:stories_sbd_steps_sweep --workdir=runs/steps_sweep

The checkpoints are those of one run of `stories_sbd:recipe` with 2,000 updates in runs/third, whose
learning rate falls to the end: earlier ones are what that run had by then, not runs planned for fewer
steps. Beside them: AR of the original model, and of the run of `stories_ntp:recipe` with as many updates
in runs/third_ntp, which learned next tokens alone.
"""

from ml_collections import ConfigDict

from sbdjax.presets import stories_sbd_sweep

RUN, NTP = "runs/third", "runs/third_ntp"
NTP_LABEL = "NTP alone"
STEPS = (500, 1000, 1500, 2000)
GAMMAS = (0.0, 0.1, 0.4, 0.8, 1.5)


def get_config() -> ConfigDict:
  config = stories_sbd_sweep.get_config()
  config.sweep.repeats = 0  # every checkpoint is as fast as the others
  return config


def get_sweep() -> list[dict]:
  original = stories_sbd_sweep.ORIGINAL
  beside = [
    stories_sbd_sweep.ar(original, original),
    stories_sbd_sweep.ar(NTP, NTP_LABEL),
  ]
  decoders = [{"decoder.name": "ar"}] + [{"decoder.gamma": gamma} for gamma in GAMMAS]
  return beside + [
    {"sweep.checkpoint": f"{RUN}/checkpoints/{steps}", "sweep.label": f"{steps:,} steps"} | decoder
    for steps in STEPS
    for decoder in decoders
  ]
