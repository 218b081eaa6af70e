#!/bin/sh
# Trains the models of this experiment: masked diffusion, the self-speculative model, its two
# ablations. All have six blocks and the same updates; a run that was stopped goes on.
#
#   experiments/ssmd_text8/train.sh TEXT8 [FLAG ...]
#
# TEXT8: a local text8 of at least 6.4M characters (the first 6.0M are trained on, the next 0.2M
# measured). Flags are passed on to every run: --config.train.steps=500 for a shorter one.
set -eu
text=$1
shift
data="--config.data.path=$text --config.data.split_sizes=(6000000,200000,200000)"
python=${PYTHON:-python}
run() {
  name=$1 config=$2
  shift 2
  # shellcheck disable=SC2086
  $python -m sbdjax train --config="configs/$config" --workdir="runs/text8_$name" $data "$@"
}
run mdm text8_mdm.py:cpu "$@"
run ssmd text8_ssmd.py:cpu "$@"
run no_residual text8_ssmd.py:cpu,no_residual "$@"
run two_causal text8_ssmd.py:cpu,two_causal "$@"

# Figure 3, left: draft and target losses beside masked diffusion's.
$python experiments/curves.py --together --bits \
  --metrics=eval/nelbo,eval/draft_nelbo,eval/target_nelbo \
  --out=experiments/ssmd_text8/curves.png --record=experiments/ssmd_text8/curves.jsonl \
  MDM=runs/text8_mdm SSMD=runs/text8_ssmd no_residual=runs/text8_no_residual \
  two_causal=runs/text8_two_causal
