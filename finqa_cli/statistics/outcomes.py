"""The outcome of an attempt for statistics, read from its record in trajectories.jsonl, and why it was not right."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from finqa_cli.grading.answers import parse_reply
from finqa_cli.grading.programs import ProgramError, parse
from finqa_cli.types import Status, Trajectory
from finqa_cli.types.token_use import recorded_use

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "sandbox_error": "the sandbox failed; not scored",
        "engine_error": "the engine failed; not scored",
        "environment_error": "the environment failed; not scored",
        "max_turns": "no response within the allowed turns",
        "max_tokens": "cut at the limit of tokens or cost",
        "timeout": "out of time",
        "parse_error": "no tool call could be read",
        "malformed": "the reply does not have the requested format",
        "no_answer": "ended without an answer",
        "no_program": "the program in the reply cannot be parsed",
        "wrong_program": "the stated answer is right, but the program has another result",
        "form": "the right value in a form that the grader does not accept",
        "sign": "the right value with the other sign",
        "percent": "off by a factor of 100: percent against fraction",
        "scale": "off by thousands, millions or billions",
        "close": "close to the truth, but outside of the tolerance",
        "wrong_table": "another value, without a look at the right table",
        "wrong_answer": "another value",
    }
)
"""Reason why an attempt is not right -> its explanation, in the order in which reasons are checked."""

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""Exceptions that reading may raise when a value is not a record, or a file does not belong to a run."""

OWN = "environment_"
"""Prefix of a part of the environment's own verdict whose name the configured reward uses too."""

RIGHT = 1.0 - 1e-9
"""Smallest value of a part of the reward that counts as right."""

_SHOWN_CHARACTERS = 200

_ROUNDED = 0.005
"""Largest relative difference of a value that counts as rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One attempt.

    Attributes:
        question: The task's id.
        company: The task's cluster.
        kind: Question type; may be empty.
        split: The task's split.
        prompt: The question as the agent read it.
        member: Number of the attempt among those at the question.
        status: Why it ended.
        correct: The verdict; None for a fault, which counts in no mean.
        reward: Total reward; None for a fault.
        components: Named parts of the reward.
        answer: The submitted or stated answer; empty if there is none.
        program_reads: The reply contains a program in FinQA's language; None if the environment requests no program.
        well_formed: Every tool call could be parsed, or the reply has the requested format; None if the environment
            requests no format.
        reason: A key of `REASONS`; empty when it is right.
        explanation: The grader's explanation, or the message of the fault.
        turns: Number of assistant turns.
        tokens: Sampled tokens; None if they are unknown.
        seconds: Wall-clock seconds.
    """

    question: str
    company: str
    kind: str
    split: str
    prompt: str
    member: int
    status: Status
    correct: bool | None
    reward: float | None
    components: Mapping[str, float]
    answer: str
    program_reads: bool | None
    well_formed: bool | None
    reason: str
    explanation: str
    turns: int
    tokens: int | None
    seconds: float

    def part(self, name: str) -> float | None:
        """A part of the environment's verdict; None when it has none of this name."""
        return _own_part(self.components, name)


def _own_part(components: Mapping[str, float], name: str) -> float | None:
    return components.get(f"{OWN}{name}", components.get(name))


def is_correct(components: Mapping[str, float], total: float) -> bool:
    """The verdict: the reward's part `correct` where it has one, else whether the reward is full."""
    return components.get("correct", total) >= RIGHT


def is_right(trajectory: Trajectory) -> bool:
    """The verdict on a graded attempt; see `is_correct`."""
    assert trajectory.rewards is not None
    return is_correct(trajectory.rewards.components, trajectory.rewards.total)


def stated_answer(calls: Sequence[tuple[str, Mapping[str, Any]]], text: str, *, ended: bool) -> str:
    """The answer of an episode: the last one submitted, else the one that its last text states, else the text's start.

    Args:
        calls: Name and arguments of its tool calls in their order.
        text: The last text of an episode without tools; empty with tools.
        ended: The last call ended the episode, so that its arguments are the answer, by any name.
    """
    submitted = [arguments for name, arguments in calls if name == "submit_answer"]
    if submitted:
        return str(submitted[-1].get("answer", ""))
    if ended:
        values = list(calls[-1][1].items())
        shown = str(values[0][1]) if len(values) == 1 else ", ".join(f"{name}={value}" for name, value in values)
        return shown[:_SHOWN_CHARACTERS]
    reply = parse_reply(text)
    return reply.answer_text if reply.ok else text[:_SHOWN_CHARACTERS]


def answer_of(trajectory: Trajectory) -> str:
    """The answer of an attempt; see `stated_answer`."""
    calls = [(step.call.name, step.call.arguments) for turn in trajectory.turns for step in turn.steps]
    last = [step.observation for turn in trajectory.turns[-1:] for step in turn.steps[-1:]]
    text = "" if trajectory.tools or not trajectory.turns else trajectory.turns[-1].text
    return stated_answer(calls, text, ended=any(each is not None and each.done and not each.is_error for each in last))


def read_outcome(record: Mapping[str, Any]) -> Outcome:
    """The outcome in one record of trajectories.jsonl.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, OverflowError: The mapping is not such a record (`MALFORMED`).
    """
    task, turns, reward = record["task"], record["turns"], record["reward"]
    status = Status(record["status"])
    components = {str(name): _finite(value) for name, value in record["components"].items()}
    graded = reward is not None
    text = "" if record["tools"] or not turns else str(turns[-1]["text"])
    form = (None, None) if record["tools"] else _form(components, text)
    steps = [step for turn in turns if turn["tool_call"] is not None for step in (turn, *turn.get("further_steps", ()))]
    calls = [(step["tool_call"]["name"], step["tool_call"]["arguments"]) for step in steps]
    answer = stated_answer(calls, text, ended=bool(turns) and turns[-1]["tool_call"] is not None and _ends(steps[-1]))
    correct = is_correct(components, _finite(reward)) if graded else None
    return Outcome(
        question=str(task["id"]),
        company=str(task["cluster"]),
        kind=str(task["kind"]),
        split=str(task["split"]),
        prompt=str(task["prompt"]),
        member=int(record["member"]),
        status=status,
        correct=correct,
        reward=_finite(reward) if graded else None,
        components=components,
        answer=answer,
        program_reads=form[0],
        well_formed=all(not turn["parse_error"] for turn in turns) if record["tools"] else form[1],
        reason="" if correct else _reason(status, components, answer, form, _value_reason(record, calls)),
        explanation=str(record["explanation"] or record["error"]),
        turns=len(turns),
        tokens=None if (use := recorded_use(record)) is None else use.sampled,
        seconds=_finite(record["seconds"]),
    )


def _ends(step: Mapping[str, Any]) -> bool:
    observation = step["observation"] or {}
    return bool(observation.get("done")) and not observation.get("is_error")


def identity_columns(outcome: Outcome) -> dict[str, Any]:
    """The first columns of a table of attempts: which attempt it is, and how it ended."""
    return {
        "id": outcome.question,
        "member": outcome.member,
        "company": outcome.company,
        "type": outcome.kind,
        "status": outcome.status.value,
    }


def add_tokens(outcomes: Iterable[Outcome]) -> int | None:
    """Sampled tokens of attempts; None if those of none are known."""
    known = [outcome.tokens for outcome in outcomes if outcome.tokens is not None]
    return sum(known) if known else None


def by_question(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """The graded attempts at each question, questions in order of their ids."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.correct is not None:
            found[outcome.question].append(outcome)
    return dict(sorted(found.items()))


def share_right(outcomes: Sequence[Outcome]) -> float:
    """Share of the graded attempts that are right. Not for an empty list."""
    return sum(bool(outcome.correct) for outcome in outcomes) / len(outcomes)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return number


def _form(components: Mapping[str, float], text: str) -> tuple[bool | None, bool | None]:
    """Whether the program of a text reply can be parsed, and whether the reply has its format; None if not judged."""
    reply = parse_reply(text)
    form = _own_part(components, "format")
    well_formed = None if form is None else reply.ok or form > 0
    if "execution" not in components:
        return None, well_formed
    try:
        parse(reply.program)
    except ProgramError:
        return False, well_formed
    return True, well_formed


def _reason(
    status: Status, components: Mapping[str, float], answer: str, form: tuple[bool | None, bool | None], of_value: str
) -> str:
    program_reads, well_formed = form
    if status is not Status.COMPLETED:
        return status.value
    if well_formed is False:
        return "malformed"
    if not answer.strip():
        return "no_answer"
    if program_reads is not None and (_own_part(components, "answer") or 0.0) > 0:
        return "wrong_program" if program_reads else "no_program"
    if of_value not in ("", "wrong_table"):
        return of_value
    return "close" if components.get("numerical", 0.0) > 0 else of_value or "wrong_answer"


def _value_reason(record: Mapping[str, Any], calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """How the value of an answer differs from the right one; empty if that is not known, or not one of `REASONS`."""
    values = record.get("values") or {}
    given, right = (_read_values(str(values.get(name, ""))) for name in ("answer", "truth"))
    if given and len(given) == len(right):
        relations = {_relation(*pair) for pair in zip(given, right, strict=True)} - {"form"} or {"form"}
        if len(relations) == 1 and (relation := relations.pop()):
            return relation
    tables = [str(table).casefold() for table in record.get("right_tables") or ()]
    read = [
        str(value).casefold() for name, arguments in calls if name != "submit_answer" for value in arguments.values()
    ]
    looked = any(table in text for table in tables for text in read)
    return "wrong_table" if tables and not looked else ""


def _read_values(text: str) -> list[float]:
    """The numbers that `finqa_cli.grading.read_numbers` wrote, without their keys; empty if one is no number."""
    try:
        return [_finite(part.rpartition(": ")[2].replace(",", "")) for part in text.split(", ")] if text else []
    except ValueError:
        return []


def _relation(given: float, right: float) -> str:
    """Reason for a value beside the right one; empty for any other value. The tolerance allows for rounding."""
    if math.isclose(given, right, rel_tol=_ROUNDED):
        return "form"
    if math.isclose(given, -right, rel_tol=_ROUNDED):
        return "sign"
    for reason, factors in (("percent", (100.0,)), ("scale", (1e3, 1e6, 1e9))):
        for factor in factors:
            ratios = (given * factor, right), (given, right * factor)
            if any(math.isclose(abs(one), abs(other), rel_tol=_ROUNDED) and other for one, other in ratios):
                return reason
    return ""
