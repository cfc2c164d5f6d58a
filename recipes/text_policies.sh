#!/usr/bin/env bash
# Reproduces the embedded policies of the environments `code`, `forecast`, `mbpp` and `finqa-text` from nothing, with the
# product's own commands: about a quarter of an hour on one core.
#
#   recipes/text_policies.sh [WORK_FOLDER]        (default runs/text_policies; must not exist yet)
#
# Demonstrations are careless, so that there is something to learn by reinforcement: 70 % of the functions forget to
# return their result, 60 % of the forecasts the <answer> tags, and of the problems in several attempts 90 % forget it at
# first and 85 % again after feedback; half of the answers about reports average a row for any figure of it. None shows a task
# that is held out: functions are of the split `train` of the same 1400, and shares and reports are of another seed, with
# no ticker of the embedded ones that is held out.
# Forecasts are of two types: of one alone a policy this small learned the form, but not the answers. Reports are asked
# about whole rows only: to find single figures and copy them was not learned within ten minutes. Without a slow rise of the rate
# it does not learn which row is asked for.
set -euo pipefail
cd "$(dirname "$0")/.."

work="${1:-runs/text_policies}"
shipped="plugins/finqa_plugins/policies"
slow_rise=(--seed 0 --validation-samples 0 --set 'learner.options.betas=[0.9,0.98]' --set learner.options.threads=1
  --set sft.warmup_share=0.2)
schedule=("${slow_rise[@]/sft.warmup_share=0.2/sft.warmup_share=0.05}")
functions=(--environment code --set environment.options.family=functions --set environment.options.tasks=1400)
shares=(--environment forecast --set 'environment.options.types=["macro_fundamental","news_sentiment"]'
  --set environment.options.noise=0 --set environment.options.companies=600 --set environment.options.seed=1075)
problems=(--environment mbpp --set environment.options.family=functions --set environment.options.tasks=1400
  --set environment.options.shown_tests=1)
reports=(--environment finqa-text --set 'environment.options.kinds=["row"]' --set environment.options.companies=600
  --set environment.options.seed=1075)

finqa eval scripted "${functions[@]}" --split train --sandboxes 4 --run-dir "$work/functions" \
  --set environment.options.careless=0.7
finqa sft "$work/functions" --init benchmarks/code_policy.toml "${functions[@]}" --run-dir "$work/code" \
  --epochs 10 --lr 3e-3 --batch-tokens 1024 "${schedule[@]}"

finqa eval scripted "${shares[@]}" --split train --run-dir "$work/forecasts" --set environment.options.careless=0.6
finqa sft "$work/forecasts" --init recipes/forecast_policy.toml "${shares[@]}" --run-dir "$work/forecast" \
  --epochs 5 --lr 2e-3 --batch-tokens 4096 "${schedule[@]}"

finqa eval scripted "${problems[@]}" --split train --sandboxes 4 --run-dir "$work/problems" \
  --set environment.options.careless=0.9 --set environment.options.careless_again=0.85
finqa sft "$work/problems" --init recipes/mbpp_policy.toml "${problems[@]}" --run-dir "$work/mbpp" \
  --epochs 16 --lr 3e-3 --batch-tokens 2048 "${schedule[@]}"

finqa eval scripted "${reports[@]}" --split train --run-dir "$work/answers" --set environment.options.careless=0.5
finqa sft "$work/answers" --init recipes/text_policy.toml "${reports[@]}" --run-dir "$work/text" \
  --epochs 3 --lr 2e-3 --batch-tokens 2048 "${slow_rise[@]}"

for policy in code forecast mbpp text; do
  mkdir -p "$shipped/$policy"
  cp "$work/$policy"/checkpoints/final/* "$shipped/$policy"/
  chmod 644 "$shipped/$policy"/*
  finqa eval "embedded-$policy" --split test
done
