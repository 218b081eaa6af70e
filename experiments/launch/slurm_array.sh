#!/usr/bin/env bash
# Jacobi trajectories shared by 16 jobs that know nothing of each other: sbatch experiments/launch/slurm_array.sh
#
# Each job makes its share of the shards. A job that failed is submitted again by itself, for example
# sbatch --array=5 ..., and goes on with the shards that are missing.
#SBATCH --job-name=trajectories
#SBATCH --array=0-15
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
set -euo pipefail
WORKDIR=${WORKDIR:-/shared/data/trajectories}
PARTS=${PARTS:-16}

python -m sbdjax trajectories --config=preset:qwen25_coder_7b_jacobi --workdir="$WORKDIR" \
  --shard="$SLURM_ARRAY_TASK_ID/$PARTS"
