"""An environment of verifiers with one turn and no tools."""

from __future__ import annotations

import verifiers as vf
from datasets import Dataset

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Peru": "Lima", "Kenya": "Nairobi"}


def load_environment() -> vf.Environment:
    rows = [{"question": f"What is the capital of {land}?", "answer": city} for land, city in CAPITALS.items()]

    def named(completion: vf.Messages, answer: str) -> float:
        return float(answer in completion[-1]["content"])

    def brief(completion: vf.Messages) -> float:
        return 1 / (1 + len(completion[-1]["content"].split()))

    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows),
        system_prompt="Answer with a city.",
        rubric=vf.Rubric(funcs=[named, brief], weights=[1.0, 0.5]),
    )
