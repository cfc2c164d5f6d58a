#!/usr/bin/env bash
# Recipe of `make demo`: trains the embedded policy, then its control for half of the iterations, and writes one report.
# Arguments are flags of `finqa train` for both trainings.
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
[ -n "$run" ] || exit 0 # --help, --json and similar options print no run

iterations=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["train"]["iterations"])' "$run/settings.json")
half=$(((iterations + 1) / 2))
control="${run%/}_control"
printf '\nThe control: the same training run with shuffled rewards, %s of %s iterations.\n' "$half" "$iterations"
train "$@" --shuffle-rewards --iterations "$half" --run-dir "$control"
echo
finqa report "$run" --control "$control"
