#!/usr/bin/env bash
# Everything recorded in this folder, from the project's root. SELF is the text that the stories model told itself:
# runs/self.npz of experiments/sbd_stories260k/reproduce.sh. Re-running it resumes.
set -euo pipefail
PY=${PY:-.venv/bin/python}
SELF=${SELF:-runs/self.npz}
OUT=experiments/freedave_stories260k

$PY $OUT/align.py --tokens="$SELF" --out=runs/self_blocks.npz
# train SIZE WORKDIR SEED
train() {
  $PY -m sbdjax train --config="preset:stories_block_diffusion:$1" --workdir="$2" --config.data.path=runs/self_blocks.npz \
    --config.train.seed="$3"
}
for size in 4 16; do
  train $size runs/bd$size 0
  $PY -m sbdjax sweep --config=preset:stories_freedave_sweep:$size --config.sweep.repeats=0 --workdir=runs/freedave$size
done
$PY $OUT/tables.py runs/freedave4 runs/freedave16 --out=$OUT
for seed in 1 2; do
  for size in 4 16; do
    train $size runs/bd${size}_$seed $seed
    $PY -m sbdjax sweep --config=preset:stories_freedave_sweep:$size,$seed --workdir=runs/freedave${size}_$seed
  done
done
cat runs/freedave{4,16}_{1,2}/points.jsonl > $OUT/seeds.jsonl

$PY $OUT/agreement.py --checkpoint=runs/bd4_1 --prompts=240 > $OUT/agreement.jsonl
rm -f $OUT/memory.jsonl # lines are added
$PY $OUT/peak_memory.py --out=$OUT/memory.jsonl

# The clock, on an idle machine.
for size in 4 16; do
  $PY -m sbdjax sweep --config=preset:stories_freedave_sweep:$size --config.sweep.checkpoint=runs/bd${size}_1 \
    --config.sweep.num_prompts=12 --workdir=runs/freedave${size}_timed
done
for name in points speeds; do
  cat runs/freedave{4,16}_timed/$name.jsonl > $OUT/timed_$name.jsonl
done
$PY experiments/tables.py --write
$PY experiments/gallery.py freedave_stories260k/freedave.png
