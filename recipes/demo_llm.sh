#!/usr/bin/env bash
# Recipe of `make demo-llm`: a real language model, SmolLM2-135M-Instruct, learns to answer questions with tools.
# Evaluates it, teaches it the tools by imitation (all weights), improves it by GRPO (LoRA), trains the control with
# shuffled rewards for about half of the iterations, and writes one report. Held-out companies are in no training run.
#
#   recipes/demo_llm.sh [WORK_FOLDER] [FLAGS]      (default runs/demo_llm)
#
# FLAGS are flags of `finqa train` for both training runs, such as --seed 1. A second call with the same folder continues
# after the last finished step. The scripted expert makes the same mistake in 60 % of its episodes: it does not quote
# year columns, and SQLite then computes with the year itself. Imitation learns the mistake, rewards remove it. With
# 80 % hardly any sampled episode was right (3 of 111), so that GRPO had nothing to prefer.
set -euo pipefail
cd "$(dirname "$0")/.."

work=runs/demo_llm
case "${1:-}" in
"" | -*) ;;
*)
  work="${1%/}"
  shift
  ;;
esac
model="${DEMO_LLM_MODEL:-smollm2-135m-instruct}"

step() { printf '\n%s\n' "$*"; }
with_settings() { finqa "$@" --config recipes/demo_llm.toml; }
is_done() { [ -f "$1/run.json" ] && grep -q '"status": *"completed"' "$1/run.json"; }

# train FOLDER [FLAGS]: starts a training run from the imitating policy, or continues the one that is there.
train() {
  local run="$1"
  shift
  if [ -d "$run/checkpoints" ]; then
    finqa train --resume "$run"
  else
    with_settings train --model "$work/sft" --run-dir "$run" "$@"
  fi
}

[ -n "${DEMO_LLM_MODEL:-}" ] || finqa model get "$model"

step "1. The model as it is, on held-out questions."
is_done "$work/before" || with_settings eval "$model" --run-dir "$work/before"

step "2. Demonstrations of the scripted expert, which leaves years unquoted in 60 % of them."
is_done "$work/demonstrations" || finqa eval scripted --split train --run-dir "$work/demonstrations" \
  --set engine.options.unquoted_years=0.6 --grader strict

step "3. Imitation of the demonstrations, with all weights."
if [ -d "$work/sft/checkpoints" ]; then
  is_done "$work/sft" || finqa sft --resume "$work/sft"
else
  with_settings sft "$work/demonstrations" --model "$model" --lora-rank 0 --run-dir "$work/sft"
fi

step "4. GRPO with LoRA, with held-out questions before and after."
train "$work/train" "$@"

iterations=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["train"]["iterations"])' "$work/train/settings.json")
# With shuffled rewards the episodes of a later iteration hardly end any more, and fill the hour.
half=$((iterations > 1 ? iterations / 2 : 1))
step "5. The control: the same training run with shuffled rewards, $half of $iterations iterations."
train "$work/control" "$@" --shuffle-rewards --iterations "$half"

echo
finqa report "$work/train" --control "$work/control"
