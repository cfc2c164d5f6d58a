"""An environment of verifiers with several turns in words: guess a number, told whether it is higher or lower."""

from __future__ import annotations

import re

import verifiers as vf
from datasets import Dataset


class GuessEnv(vf.MultiTurnEnv):
    async def env_response(self, messages: vf.Messages, state: vf.State) -> vf.Messages:
        numbers = re.findall(r"\d+", messages[-1]["content"])
        if not numbers:
            return [vf.UserMessage(content="Say a number.")]
        guess, wanted = int(numbers[-1]), int(state["answer"])
        state["found"] = guess == wanted
        state["tries"] = state.get("tries", 0) + 1
        said = "Right." if guess == wanted else "Higher." if guess < wanted else "Lower."
        if state["found"]:
            state["final_env_response"] = [vf.UserMessage(content=said)]
        return [vf.UserMessage(content=said)]


def load_environment(fail: bool = False) -> vf.Environment:
    rows = [{"question": "Guess my number from 1 to 9.", "answer": str(n)} for n in (2, 5, 8)]

    def quick(state: vf.State) -> float:
        if fail:
            raise KeyError("tries")
        return 1 / state["tries"] if state.get("found") else 0.0

    return GuessEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[quick]), max_turns=6)
