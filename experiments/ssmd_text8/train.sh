#!/bin/sh
# Trains the models of this experiment: masked diffusion and the self-speculative model for STEPS
# updates (7000), both again for 1000 updates with the two ablations beside them, two rounds of SDTT,
# and a judge. All but the judge have six blocks; re-running it resumes.
#
#   experiments/ssmd_text8/train.sh TEXT8 [FLAG ...]
#
# TEXT8: a local text8 of at least 6.4M characters (the first 6.0M are trained on, the next 0.2M
# measured). Flags are passed on to every run.
set -eu
text=$1
shift
data="--config.data.path=$text --config.data.split_sizes=(6000000,200000,200000)"
python=${PYTHON:-python}
run() {
  workdir=runs/$1 config=$2
  shift 2
  # shellcheck disable=SC2086
  $python -m sbdjax train --config="preset:$config" --workdir="$workdir" $data "$@"
}
long="--config.train.steps=${STEPS:-7000} --config.train.eval_every=500"
# shellcheck disable=SC2086
{
  run text8_mdm text8_mdm:cpu $long "$@"
  run text8_ssmd text8_ssmd:cpu $long "$@"
}
run text8_mdm_short text8_mdm:cpu "$@"
run text8_ssmd_short text8_ssmd:cpu "$@"
run text8_no_residual text8_ssmd:cpu,no_residual "$@"
run text8_two_causal text8_ssmd:cpu,two_causal "$@"
# Self-distillation through time: two rounds of the short masked-diffusion model.
run text8_sdtt_1 text8_sdtt:cpu,1 --config.init.checkpoint=runs/text8_mdm_short "$@"
run text8_sdtt_2 text8_sdtt:cpu,2 --config.init.checkpoint=runs/text8_sdtt_1 "$@"
run text8_judge text8_ntp:cpu --config.train.steps=3000 "$@"

# Figure 3, left: draft and target losses beside masked diffusion's, which experiments/ssmd_text8/report.py draws.
curves() {
  folder=$1
  shift
  $python experiments/curves.py --together --bits \
    --metrics=eval/nelbo,eval/draft_nelbo,eval/target_nelbo \
    --record="$folder/curves.jsonl" "$@"
}
out=experiments/ssmd_text8
curves $out MDM=runs/text8_mdm SSMD=runs/text8_ssmd
curves $out/ablations MDM=runs/text8_mdm_short SSMD=runs/text8_ssmd_short \
  no_residual=runs/text8_no_residual two_causal=runs/text8_two_causal
