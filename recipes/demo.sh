#!/usr/bin/env bash
# What `make demo` runs: a training of the embedded policy, its control with half of the iterations, and one report on
# both. Arguments are flags of `finqa train`, for both trainings.
#
#   recipes/demo.sh [FLAGS]
set -euo pipefail
cd "$(dirname "$0")/.."

train() { finqa train --config recipes/demo.toml "$@"; }

result=$(mktemp)
trap 'rm -f "$result"' EXIT
train "$@" >"$result" || { status=$?; cat "$result"; exit "$status"; }
cat "$result"
run=$(sed -n 's/^Run: \(.*\) ([0-9]* s)$/\1/p' "$result")
[ -n "$run" ] || exit 0 # --help, --json and the like print no run to go on with

iterations=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["train"]["iterations"])' "$run/settings.json")
half=$(((iterations + 1) / 2))
control="${run%/}_control"
printf '\nThe control: the same training with its rewards shuffled, %s of %s iterations.\n' "$half" "$iterations"
train "$@" --shuffle-rewards --iterations "$half" --run-dir "$control"
echo
finqa report "$run" --control "$control"
