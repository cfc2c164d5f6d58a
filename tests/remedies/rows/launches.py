"""Recipes of `finqa launch` that cannot be printed."""

from __future__ import annotations

from remedies.faults import Fault

_SLURM = "launch --print slurm --hours 1 --model Qwen/Qwen3-4B --engine vllm"

LAUNCHES = {
    "no kind of recipe": Fault("launch", extra="--hours 1 --model Qwen/Qwen3-4B --engine vllm", then=(0, 2)),
    "nodes beside hosts": Fault("launch --print ray --host a --host b --user u --nodes 2 --model x --engine vllm"),
    "a cluster that exists": Fault(f"{_SLURM} --cluster-address h:1"),
    "a whole model": Fault(f"{_SLURM} --lora-rank 0"),
    "an engine without a model": Fault("launch --print slurm --hours 1 --model Qwen/Qwen3-4B --engine scripted"),
    "an option that is missing": Fault("launch --print slurm --model Qwen/Qwen3-4B --engine vllm", fill={"H": "1"}),
    "an option without effect": Fault(f"{_SLURM} --image x"),
    "too few GPUs": Fault(f"{_SLURM} --nodes 1"),
}
