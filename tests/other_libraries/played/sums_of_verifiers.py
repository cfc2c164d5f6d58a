"""An environment of verifiers with tools: a sum is computed by calls, and said in `<answer>` tags."""

from __future__ import annotations

import verifiers as vf
from datasets import Dataset


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def fail(reason: str) -> str:
    """Raise an exception, for `reason`."""
    raise ValueError(reason)


def load_environment(size: int = 6, max_turns: int = 4) -> vf.Environment:
    rows = [{"question": f"What is {n} + {2 * n}?", "answer": str(3 * n)} for n in range(1, size + 1)]
    parser = vf.XMLParser(["answer"], answer_field="answer")

    def exact(completion: vf.Messages, answer: str) -> float:
        return float(parser.parse_answer(completion) == answer)

    def called(completion: vf.Messages) -> float:
        return float(sum(message["role"] == "tool" for message in completion))

    rubric = vf.Rubric(funcs=[exact, called, parser.get_format_reward_func()], weights=[1.0, 0.25, 0.5], parser=parser)
    return vf.ToolEnv(
        tools=[add, fail],
        dataset=Dataset.from_list(rows[1:]),
        eval_dataset=Dataset.from_list(rows[:1] * 1 + rows[1:3]),
        system_prompt="Use the tools. Say the sum in <answer> tags.",
        parser=parser,
        rubric=rubric,
        max_turns=max_turns,
    )
