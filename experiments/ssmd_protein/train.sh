#!/bin/sh
# A causal block on a frozen bidirectional model of a protein family, at a size for two CPU cores.
#
#   experiments/ssmd_protein/family.py PROTEINS.fasta ... --out=FAMILY.fasta
#   experiments/ssmd_protein/train.sh FAMILY.fasta [FLAG ...]
#
# First the trunk (masked diffusion from scratch; it stands for a pretrained ESM-2 or DPLM), then
# the block alone. Flags are passed on to both runs; re-running it resumes.
set -eu
proteins=$1
shift
python=${PYTHON:-python}
splits="split_sizes=(0.8,0.05,0.15)"
$python -m sbdjax train --config=preset:uniref50_mdm:cpu --workdir=runs/uniref50_mdm_cpu \
  --config.data.path="$proteins" --config.data.$splits "$@"
block() {
  workdir=$1
  shift
  $python -m sbdjax train --config=preset:esm2_150m_ssmd:cpu --workdir="$workdir" \
    --config.data.path="$proteins" --config.data.$splits "$@"
}
block runs/ssmd_frozen_cpu "$@"
block runs/ssmd_frozen_linear --config.loss.schedule=linear --config.optim.learning_rate=5e-2 \
  --config.train.steps=1500 "$@"

# Figure 7: the draft's loss stays, the target's falls below it.
$python experiments/curves.py --together \
  --metrics=eval/draft_nelbo,eval/target_nelbo --out=experiments/ssmd_protein/losses.png \
  --record=experiments/ssmd_protein/losses.jsonl "cosine noise=runs/ssmd_frozen_cpu" \
  "linear noise=runs/ssmd_frozen_linear"

# The NFE curves: the trunk alone, and with the causal block. Masked diffusion with the schedule of
# its training, and with the cosine one, which is better in few steps.
measure() {
  $python experiments/ssmd_protein/sample.py --checkpoint=runs/ssmd_frozen_cpu \
    --data.path="$proteins" --data.$splits --out=experiments/ssmd_protein/points.jsonl \
    --picture=experiments/ssmd_protein/nfe.png "$@"
}
measure
measure --noise=cosine --no_samples
