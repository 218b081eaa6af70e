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
if [ -z "$ADAPTER" ]; then
  ADAPTER=runs/smollm2_adapter.safetensors
  # shellcheck disable=SC2086
  $PY $OUT/prompts.py --out=runs/all_prompts.jsonl --gsm8k="$GSM8K" --mbpp="$MBPP" --texts $TEXTS
  head -n 960 runs/all_prompts.jsonl > runs/prompts.jsonl
  $PY -m sbdjax collect --checkpoint=smollm2-135m --chat --prompts=runs/prompts.jsonl --longest=320 \
    --decoder.max_tokens=144 --batch_size=64 --shard_size=192 --workdir=runs/smollm2_text
  $PY -m sbdjax train --config=preset:smollm2_sbd_adapter --workdir=runs/smollm2_adapter
  $PY -m sbdjax convert runs/smollm2_adapter "$ADAPTER"
  $PY $OUT/ablation.py --out=$OUT/ablation.jsonl
fi

# Measurements: on an idle machine. transformers needs the extra `parity`.
$PY $OUT/measure.py --prompts="$SPEC_BENCH" --adapter="$ADAPTER" --transformers=5 \
  --out=$OUT/points.jsonl
$PY $OUT/tables.py $OUT/points.jsonl --picture=$OUT/speed.png
