#!/usr/bin/env bash
# Everything recorded in this folder, from the project's root. PROTEINS are FASTA files between spaces (UniProt: human
# Swiss-Prot and E. coli K-12). First the trunk is trained (masked diffusion from scratch; it stands
# for a pretrained ESM-2 or DPLM), then the block alone, with three seeds. Re-running it resumes.
set -euo pipefail
PY=${PY:-.venv/bin/python}
OUT=experiments/ssmd_protein
RUNS=runs/protein
mkdir -p $RUNS
# shellcheck disable=SC2086
[ -f $RUNS/family.fasta ] || $PY $OUT/family.py $PROTEINS --out=$RUNS/family.fasta

SPLIT="split_sizes=(0.7,0.05,0.25)"
# train NAME PRESET SEED SETTING ...
train() {
  name=$1 preset=$2 seed=$3
  shift 3
  $PY -m sbdjax train --config="preset:$preset" --workdir=$RUNS/"$name" --config.train.seed="$seed" \
    --config.data.path=$RUNS/family.fasta --config.data.$SPLIT "$@"
}
for seed in 0 1 2; do
  train trunk_$seed uniref50_mdm:cpu $seed
  train block_$seed esm2_150m_ssmd:cpu $seed --config.init.checkpoint=$RUNS/trunk_$seed
done
# What the noise schedule does to the block.
train linear esm2_150m_ssmd:cpu 0 --config.init.checkpoint=$RUNS/trunk_0 --config.loss.schedule=linear

# Figure 7: the draft's loss stays, the target's falls below it.
$PY experiments/curves.py --together --metrics=eval/draft_nelbo,eval/target_nelbo --out=$OUT/losses.png \
  --record=$OUT/losses.jsonl "cosine noise=$RUNS/block_0" "linear noise=$RUNS/linear"

# The trunk alone with the schedule of its training and with the cosine one, and with the block.
DATA="--data.path=$RUNS/family.fasta --data.$SPLIT --length=126"
STEPS=4,6,8,12,16,24,32,48,64,96,126
rm -f $OUT/likelihood.jsonl
for seed in 0 1 2; do
  # shellcheck disable=SC2086
  $PY $OUT/sample.py --checkpoint=$RUNS/block_$seed --out=$OUT/points.jsonl --seed=$seed $DATA
  likelihood() {
    $PY experiments/ssmd_text8/likelihood.py --out=$OUT/likelihood.jsonl --texts=256 --seed=$seed --unit=nats_per_residue \
      --data.source=fasta --data.tokenizer=esm --data.packing=crop $DATA "$@"
  }
  for noise in cosine linear; do
    likelihood --trunk_alone --noise=$noise --steps=$STEPS "trunk alone, $noise steps=$RUNS/block_$seed"
  done
  likelihood "with the block=$RUNS/block_$seed"
done
$PY experiments/tables.py --write
$PY experiments/gallery.py ssmd_protein/nfe.png
