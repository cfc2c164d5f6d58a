"""Tasks of Inspect: words, a choice, tools, and two that finqa refuses."""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, accuracy, choice, includes, match, model_graded_qa, scorer
from inspect_ai.solver import TaskState, generate, multiple_choice, prompt_template, system_message, use_tools
from inspect_ai.tool import Tool, ToolError, tool

LANDS = {"France": "Paris", "Japan": "Tokyo", "Peru": "Lima", "Kenya": "Nairobi"}


@task
def capitals(asked: str = "What is the capital of {land}?") -> Task:
    return Task(
        dataset=[Sample(input=asked.format(land=land), target=city, id=land) for land, city in LANDS.items()],
        solver=[system_message("Answer with a city."), prompt_template("{prompt}\n\nOne word."), generate()],
        scorer=[match(location="end"), includes()],
    )


@task
def chosen() -> Task:
    samples = [
        Sample(input=f"Capital of {land}?", choices=sorted(LANDS.values()), target="ABCD"[place])
        for land, place in (("France", 2), ("Japan", 3), ("Peru", 0), ("Kenya", 1))
    ]
    return Task(dataset=samples, solver=multiple_choice(), scorer=choice())


@tool
def add() -> Tool:
    async def execute(a: int, b: int) -> int:
        """Add two integers.

        Args:
            a: The first.
            b: The second.
        """
        if a < 0:
            raise ToolError("only positive integers")
        return a + b

    return execute


@scorer(metrics=[accuracy()])
def close_to() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        words = state.output.completion.split()
        right = bool(words) and words[-1].strip(".") == target.text
        return Score(value=1.0 if right else 0.25 * len(words), explanation=f"it said {state.output.completion!r}")

    return score


@task
def sums() -> Task:
    samples = [Sample(input=f"What is {n} + {2 * n}?", target=str(3 * n)) for n in range(1, 5)]
    return Task(dataset=samples, solver=[use_tools(add()), generate()], scorer=close_to())


@task
def judged() -> Task:
    return Task(dataset=[Sample(input="?", target="!")], solver=generate(), scorer=model_graded_qa())


@task
def sandboxed() -> Task:
    return Task(dataset=[Sample(input="?", target="!")], solver=generate(), scorer=match(), sandbox="docker")
