#!/usr/bin/env bash
# Everything recorded in this folder, from the project's root. Files, each also as .xz: GSM8K and MBPP
# are the training questions of both (.jsonl with `question` and with `text`), TEXTS are files of
# documents (plain text with <|endoftext|> between them, or .jsonl with `text`), SPEC_BENCH is
# Spec-Bench's question.jsonl. About three hours on two cores; with ADAPTER=FILE nothing is trained.
set -euo pipefail
PY=${PY:-.venv/bin/python}
OUT=experiments/smollm2
ADAPTER=${ADAPTER:-}

make smollm2
# shellcheck disable=SC2086
$PY $OUT/prompts.py --out=runs/all_prompts.jsonl --gsm8k="$GSM8K" --mbpp="$MBPP" --texts $TEXTS
if [ -z "$ADAPTER" ]; then
  ADAPTER=runs/smollm2_adapter.safetensors
  head -n 960 runs/all_prompts.jsonl > runs/prompts.jsonl
  $PY -m sbdjax collect --checkpoint=smollm2-135m --chat --prompts=runs/prompts.jsonl --longest=320 \
    --decoder.max_tokens=144 --batch_size=64 --shard_size=192 --workdir=runs/smollm2_text
  $PY -m sbdjax train --config=preset:smollm2_sbd_adapter --workdir=runs/smollm2_adapter
  $PY -m sbdjax convert runs/smollm2_adapter "$ADAPTER" --dtype=bfloat16
  $PY $OUT/ablation.py --out=$OUT/ablation.jsonl
fi

# Measurements: on an idle machine. transformers needs the extra `parity`. The setting is tuned on
# prompts that are in neither the adapter's text nor Spec-Bench.
tail -n 12 runs/all_prompts.jsonl > runs/tune_prompts.jsonl
$PY -m sbdjax tune --checkpoint=smollm2-135m --adapter="$ADAPTER" --chat --max_tokens=96 \
  --prompts=runs/tune_prompts.jsonl --num_prompts=12 --turns=3 --out=runs/tuned.json --json
cp runs/tuned.json $OUT/tuned.json
$PY $OUT/measure.py --prompts="$SPEC_BENCH" --adapter="$ADAPTER" --tuned=runs/tuned.json \
  --transformers=5 --out=$OUT/points.jsonl
$PY $OUT/tables.py $OUT/points.jsonl --picture=$OUT/speed.png
$PY $OUT/measure.py --checkpoint=stories260K-sbd --stories=120 --acceptance=20 --transformers=20 \
  --out=$OUT/points_stories260k.jsonl
$PY $OUT/tables.py $OUT/points_stories260k.jsonl
