"""A simulated policy: makes real tool calls in the way of the scripted expert, as long and as well as its seed says.

Lengths follow what was published for the guide's first iterations: 4.5 turns on average, some answers at once, and a
tail that reaches the limit of 20.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.types import Message, ToolCall
from finqa_plugins.engines.scripted.scripted_engine import UNKNOWN, next_call
from finqa_plugins.engines.scripted.scripted_sql import Habits

MAX_TURNS = 20
SHARE_OF_QUICK_ANSWERS = 0.12
SHORTEST_RESEARCH = 4
MU_OF_EXTRA_TURNS, SIGMA_OF_EXTRA_TURNS = -0.11, 1.0
SUBMIT = "submit_answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How an episode goes: after how many turns it submits, and whether it submits what it found."""

    turns: int
    right: bool


def plan(seed: int, question: str) -> Plan:
    """The plan of an episode, a function of its seed and question alone. A question is as hard as its text says."""
    rng = random.Random(f"plan:{seed}")
    extra = int(rng.lognormvariate(MU_OF_EXTRA_TURNS, SIGMA_OF_EXTRA_TURNS))
    turns = 1 if rng.random() < SHARE_OF_QUICK_ANSWERS else SHORTEST_RESEARCH + extra
    skill = random.Random(f"skill:{question}").random()
    return Plan(turns=min(MAX_TURNS, turns), right=rng.random() < skill)


def next_tool_call(messages: Sequence[Message], seed: int) -> ToolCall:
    """The expert's next call; its last one is repeated until the plan ends, and the plan may end before it is ready."""
    said = [message.tool_call for message in messages if message.role == "assistant"]
    chosen = plan(seed, messages[1].content)
    call = next_call(messages, Habits())
    if len(said) >= chosen.turns - 1:
        ready = chosen.right and call.name == SUBMIT
        return call if ready else ToolCall(name=SUBMIT, arguments={"answer": UNKNOWN})
    if call.name == SUBMIT and said and said[-1] is not None:
        return said[-1]
    return call
