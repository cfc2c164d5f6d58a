#!/usr/bin/env bash
# Trains the embedded policies of the environments `code`, `forecast`, `mbpp` and `finqa-text` from scratch, with
# finqa's own commands. This takes about a quarter of an hour on one core.
#
#   recipes/text_policies.sh [WORK_FOLDER]        (default runs/text_policies; must not exist yet)
#
# Demonstrations contain mistakes, so that reinforcement learning can improve the policies: 70 % of the functions do not
# return their result, 60 % of the forecasts have no <answer> tags, and for problems with several attempts, 90 % of the
# first attempts and 85 % of the attempts after feedback do not return the result. Half of the answers about reports use
# the average of a row for any question about it. No demonstration shows a held-out task: functions come from the split
# `train` of the same 1400, and stocks and reports use another seed, without held-out tickers of the embedded ones.
# Forecasts are of two types, because with one type a policy this small learned the format, but not the answers.
# Questions about reports are about whole rows only, because copying single figures was not learned within ten minutes.
# The learning rate increases slowly, because otherwise the policy does not learn which row a question is about.
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
