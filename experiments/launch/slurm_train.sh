#!/usr/bin/env bash
# One training job on 8 hosts of 8 GPUs, a process a GPU: sbatch experiments/launch/slurm_train.sh
#
# srun sets SLURM_JOB_ID, SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID and SLURM_STEP_NODELIST for every
# process; jax.distributed reads them. Two minutes before the time is up, Slurm sends SIGTERM: the run
# saves and ends with 143, and the job is queued again, which resumes it.
#SBATCH --job-name=sbd-8b
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail
WORKDIR=${WORKDIR:-/shared/runs/sbd_8b}

srun --kill-on-bad-exit=1 \
  python -m sbdjax train --config=preset:llama31_8b_sbd:64 --workdir="$WORKDIR" \
  --distributed
code=$?
if [ "$code" -eq 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
