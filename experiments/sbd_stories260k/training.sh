#!/usr/bin/env bash
# Trains the runs that the preset stories_sbd_training_sweep decodes: what the masked half learns from,
# three seeds, on the embedded stories. Re-running it resumes.
#
#   experiments/sbd_stories260k/training.sh [SEED ...]
set -euo pipefail
PY=${PY:-.venv/bin/python}
for seed in "${@:-0 1 2}"; do
  for one in $seed; do
    $PY - "$one" <<'LIST' | while IFS=$'\t' read -r workdir flags; do
import sys

from sbdjax.presets import stories_sbd_training_sweep as sweep

for training, changes in sweep.TRAININGS.items():
  flags = " ".join(f"--config.{name}={value}" for name, value in changes.items())
  print(sweep.folder(training, int(sys.argv[1])), flags, sep="\t")
LIST
      # shellcheck disable=SC2086
      $PY -m sbdjax train --config=preset:stories_sbd:recipe --workdir="$workdir" \
        --config.train.steps="${STEPS:-500}" --config.train.eval_every=0 --config.train.checkpoint_every=0 \
        --config.train.seed="$one" $flags </dev/null
    done
  done
done
