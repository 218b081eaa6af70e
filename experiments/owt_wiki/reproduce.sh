#!/usr/bin/env bash
# Everything recorded in this folder, from the project's root. WIKI is a text file of documents with
# <|endoftext|> between them (40 MB of English Wikipedia here, which stands in for OpenWebText).
# SmolLM2 judges too: `make smollm2`. Re-running it resumes. STEPS, SAMPLES and TEXTS make it
# smaller, OUT names another folder for the records.
set -euo pipefail
PY=${PY:-.venv/bin/python}
OUT=${OUT:-experiments/owt_wiki}
STEPS=${STEPS:-4000}

SPLIT="0.97 0.015 0.015"
# shellcheck disable=SC2086
[ -f runs/owt_bpe/vocab.json ] || $PY experiments/owt_wiki/bpe.py "$WIKI" --split_sizes $SPLIT --out=runs/owt_bpe

run() {
  workdir=runs/owt_wiki/$1 config=$2
  shift 2
  $PY -m sbdjax train --config="preset:$config" --workdir="$workdir" --config.data.source=text \
    --config.data.path="$WIKI" --config.data.tokenizer=runs/owt_bpe --config.data.seq_len=128 \
    --config.data.split_sizes="(${SPLIT// /,})" --config.data.add_bos=false --config.data.add_eos=true \
    --config.data.packing=concat --config.train.eval_batches=16 "$@"
}
# Rows of the vocabulary: 4,095 tokens and the mask.
VOCABULARY="--config.model.vocab_size=4096 --config.model.mask_id=4095"
MODEL="$VOCABULARY --config.model.unused_rows=0 --config.model.max_seq_len=128"
TRAIN="--config.optim.name=muon --config.optim.learning_rate=1e-2 --config.optim.warmup_steps=$((STEPS / 80))
  --config.train.batch_size=16 --config.train.steps=$STEPS --config.train.eval_every=$((STEPS / 8))
  --config.train.checkpoint_every=250 --config.train.ema_decay=0.999"
# shellcheck disable=SC2086
{
  run mdm owt_mdm:cpu $MODEL --config.model.num_layers=6 $TRAIN
  run ssmd owt_ssmd:cpu $MODEL --config.model.num_layers=5 $TRAIN
  run judge text8_ntp:cpu $VOCABULARY --config.model.max_seq_len=128 --config.model.num_layers=6 $TRAIN
  run sdtt_1 owt_sdtt:cpu,1 --config.init.checkpoint=runs/owt_wiki/mdm
  run sdtt_2 owt_sdtt:cpu,2 --config.init.checkpoint=runs/owt_wiki/sdtt_1
}

TEXT="--data.source=text --data.tokenizer=runs/owt_bpe --data.path=$WIKI --data.split_sizes=(${SPLIT// /,})"
TEXT="$TEXT --data.add_bos=false --data.add_eos=true --data.packing=concat"
RUNS="MDM=runs/owt_wiki/mdm SSMD=runs/owt_wiki/ssmd SDTT1=runs/owt_wiki/sdtt_1 SDTT2=runs/owt_wiki/sdtt_2"
GRID=6,8,11,16,24,32,64,128
# shellcheck disable=SC2086
{
  $PY experiments/ssmd_text8/sample.py --out=$OUT/points.jsonl --samples="${SAMPLES:-256}" --length=128 --steps=$GRID $TEXT \
    --judge=runs/owt_wiki/judge --judge_note="trained here: 6 blocks of width 128 on the same text" \
    --second_judge=smollm2-135m --second_judge_note="SmolLM2-135M-Instruct" $RUNS
  rm -f $OUT/likelihood.jsonl
  $PY experiments/ssmd_text8/likelihood.py --out=$OUT/likelihood.jsonl --texts="${TEXTS:-240}" --length=128 --steps=$GRID \
    --unit=nats_per_token $TEXT $RUNS
}
$PY experiments/curves.py --together --metrics=eval/nelbo,eval/draft_nelbo,eval/target_nelbo \
  --record=$OUT/curves.jsonl MDM=runs/owt_wiki/mdm SSMD=runs/owt_wiki/ssmd
$PY experiments/owt_wiki/tables.py "$OUT" --picture="$OUT/samples.png"
