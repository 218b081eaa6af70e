#!/bin/sh
# Samples and likelihoods of the models that train.sh trained, figure3.png and tables.md of them.
#
#   experiments/ssmd_text8/measure.sh TEXT8
#
# What is recorded already is not measured again, but for likelihoods.
set -eu
data="--data.path=$1 --data.split_sizes=(6000000,200000,200000)"
python=${PYTHON:-python}
out=experiments/ssmd_text8
judge="trained here: 3 blocks of width 128, 3000 updates on the same text"

sample() {
  # shellcheck disable=SC2086
  $python $out/sample.py --length=128 $data "$@"
}
likelihood() {
  # shellcheck disable=SC2086
  $python $out/likelihood.py --texts=48 --length=128 --steps=6,8,11,16,24,32,64,128 $data "$@"
}

rm -f $out/likelihood.jsonl $out/ablations/likelihood.jsonl
long="MDM=runs/text8_mdm SSMD=runs/text8_ssmd"
# shellcheck disable=SC2086
{
  sample --out=$out/points.jsonl --samples="${SAMPLES:-256}" --steps=6,8,11,16,24,32,64,128 \
    --judge=runs/text8_judge --judge_note="$judge" $long
  likelihood --out=$out/likelihood.jsonl $long
}
$python $out/report.py --folder=$out

short="MDM=runs/text8_mdm_short SSMD=runs/text8_ssmd_short"
ablations="no_residual=runs/text8_no_residual two_causal=runs/text8_two_causal"
# shellcheck disable=SC2086
{
  sample --out=$out/ablations/points.jsonl --samples=128 --steps=6,8,11,16,24,32,64 $short
  sample --out=$out/ablations/points.jsonl --samples=128 --rules=1:0.02,1:0.083,3:0.125 $ablations
  likelihood --out=$out/ablations/likelihood.jsonl $short $ablations
}
$python $out/report.py --folder=$out/ablations

# Self-distillation through time beside the model it began from.
rm -f $out/sdtt/likelihood.jsonl
rounds="MDM=runs/text8_mdm_short SDTT1=runs/text8_sdtt_1 SDTT2=runs/text8_sdtt_2"
# shellcheck disable=SC2086
{
  sample --out=$out/sdtt/points.jsonl --samples=128 --steps=8,16,32 $rounds
  likelihood --out=$out/sdtt/likelihood.jsonl $rounds
}

# Windows that grow as a cosine schedule has it, and in proportion to what is known.
rules=1:0.01,1:0.02,1:0.04,1:0.083,1:0.125,1:0.167,1:0.25
rules=$rules,1:linear:0.05,1:linear:0.1,1:linear:0.2,1:linear:0.4,1:linear:0.8,1:linear:1.5,1:linear:3
rm -f $out/windows.jsonl
# shellcheck disable=SC2086
$python $out/likelihood.py --out=$out/windows.jsonl --texts=96 --length=128 --rules=$rules $data \
  SSMD=runs/text8_ssmd_short
$python experiments/gallery.py ssmd_text8/windows.png
