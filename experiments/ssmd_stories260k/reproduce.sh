#!/usr/bin/env bash
# Everything recorded in this folder, from the project's root. TINYSTORIES and VALIDATION are text
# files of stories with <|endoftext|> between them: the first 2 MiB of the TinyStories train split,
# and stories of TinyStoriesV2-GPT4 that are not among them. Re-running it resumes.
set -euo pipefail
PY=${PY:-.venv/bin/python}
OUT=experiments/ssmd_stories260k

for seed in 0 1; do
  for model in mdm ssmd; do
    $PY -m sbdjax train --config=preset:stories_$model --workdir=runs/ssmd_stories/${model}_$seed \
      --config.data.source=text --config.data.path="$TINYSTORIES" \
      --config.data.valid_path="$VALIDATION" --config.train.seed=$seed
  done
done

TEXT="--data.source=text --data.tokenizer=tok512 --data.add_bos=true --data.path=$TINYSTORIES"
TEXT="$TEXT --data.valid_path=$VALIDATION --split=validation --length=128"
STEPS=6,8,11,16,24,32,64,128
rm -f $OUT/likelihood.jsonl
for seed in 0 1; do
  RUNS="MDM=runs/ssmd_stories/mdm_$seed SSMD=runs/ssmd_stories/ssmd_$seed"
  $PY experiments/ssmd_text8/sample.py --out=$OUT/points.jsonl --samples=1024 --steps=$STEPS --seed=$seed $TEXT \
    --judge=stories260K --judge_note="stories260K, which all models began from" $RUNS
  $PY experiments/ssmd_text8/likelihood.py --out=$OUT/likelihood.jsonl --texts=240 --steps=$STEPS --seed=$seed \
    --unit=nats_per_token $TEXT $RUNS
done
$PY experiments/tables.py --write
$PY experiments/gallery.py ssmd_stories260k/samples.png
