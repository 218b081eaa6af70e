#!/usr/bin/env bash
# Two processes on this machine, one job: bash experiments/launch/local.sh runs/two
set -euo pipefail
WORKDIR=${1:-runs/two}

python -m sbdjax launch --processes=2 -- train \
  --config=preset:stories_sbd_quickstart --workdir="$WORKDIR" \
  --config.train.steps=20 --config.train.log_every=10 --config.optim.warmup_steps=2
