#!/usr/bin/env bash
# Trains the embedded policy from scratch, with finqa's own commands. This takes about half an hour on one core.
#
#   recipes/tiny_policy.sh [WORK_FOLDER]        (default runs/tiny_policy; must not exist yet)
#
# The demonstrations use companies that are not in the embedded data set. The scripted expert makes mistakes: in 85 %
# of its episodes it does not quote year columns, and half of its growth rates and margins are percentages, not ratios.
set -euo pipefail
cd "$(dirname "$0")/.."

work="${1:-runs/tiny_policy}"
shipped="plugins/finqa_plugins/policies"
export FINQA_HOME="$work/home"

finqa data generate --companies 3000 --questions 8 --seed 1001 --splits 1,0,0 --out "$work/data"
finqa snapshot build --snapshot-name tiny-policy --data "$work/data"
finqa eval scripted --snapshot tiny-policy --split train --run-dir "$work/demonstrations" --sandboxes 32 \
  --set engine.options.unquoted_years=0.85 --set engine.options.undivided_percentages=0.5
finqa sft "$work/demonstrations" --init configs/models/tiny.toml --run-dir "$work/sft" \
  --epochs 2 --lr 2e-3 --batch-tokens 4096 --seed 0 \
  --set 'learner.options.betas=[0.9,0.98]' --set learner.options.threads=1 --set sft.warmup_share=0.05

install -m 644 "$work"/sft/checkpoints/final/* "$shipped"/
finqa eval "$shipped" --split test
finqa eval "$shipped" --split test --temperature 1 --attempts 4
