#!/usr/bin/env bash
# Everything recorded in this folder, from the project's root: five trainings of a model of 260K
# parameters, then their decoders on the same exercises. Each line goes on where it was.
set -euo pipefail
PY=${PY:-.venv/bin/python}
OUT=experiments/one_task
RUNS=${RUNS:-runs/one_task}

for method in ntp sbd sbd_no_ntp block_diffusion; do
  $PY -m sbdjax train --config=preset:stories_exercises:$method --workdir=$RUNS/$method
done
$PY -m sbdjax train --config=preset:stories_exercises:jacobi --workdir=$RUNS/jacobi \
  --config.init.checkpoint=$RUNS/ntp
$PY experiments/curves.py NTP=$RUNS/ntp SBD=$RUNS/sbd "SBD w/o NTP term=$RUNS/sbd_no_ntp" \
  "block diffusion=$RUNS/block_diffusion" --metrics=eval/ntp_loss,eval/masked_loss \
  --out=$OUT/losses.png --record=$OUT/losses.jsonl
$PY $OUT/measure.py --runs=$RUNS --out=$OUT/points.jsonl
$PY $OUT/tables.py --points=$OUT/points.jsonl --out=$OUT
