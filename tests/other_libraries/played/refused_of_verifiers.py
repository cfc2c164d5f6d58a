"""Environments of verifiers that finqa refuses, by their names."""

from __future__ import annotations

import verifiers as vf
from datasets import Dataset


def grouped(completions: list[vf.Messages]) -> list[float]:
    return [0.0 for _ in completions]


class SandboxEnv(vf.SingleTurnEnv):
    """Named like the one of verifiers, which needs an account."""


def load_environment(kind: str = "judge") -> vf.Environment:
    rows = Dataset.from_list([{"question": "?", "answer": "!"}])
    if kind == "judge":
        return vf.SingleTurnEnv(dataset=rows, rubric=vf.JudgeRubric())
    if kind == "group":
        return vf.SingleTurnEnv(dataset=rows, rubric=vf.RubricGroup([vf.Rubric(funcs=[grouped])]))
    if kind == "sandbox":
        return SandboxEnv(dataset=rows, rubric=vf.Rubric())
    raise ValueError(f"no kind {kind!r}")
