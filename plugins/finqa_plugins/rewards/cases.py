"""Built-in tests of the rewards that follow a specification, and tests in specification files.

The worth of each example was determined by hand: whether it is exact, its relative error, and its share of the right
program. Weights and tolerances of the specification in force turn that into the expected parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from finqa_cli.grading.answers import Case
from finqa_plugins.rewards.spec import RewardSpec

_GROWTH = "subtract(5829, 5735), divide(#0, 5735)"
_STEPS = [
    {"operation": "subtract", "arguments": ["5829", "5735"], "result": 94},
    {"operation": "divide", "arguments": ["#0", "5735"], "result": 0.01639},
]
_TABLE = (("", "2009", "2008"), ("revenue", "5829", "5735"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Example:
    """An answer, and its worth, determined by hand.

    Attributes:
        exact: Whether the answer is the truth.
        relative: |answer - truth| / |truth| if both are numbers, else None.
        program_share: Share of the program part that it earns; 0 without a program.
        reply: The whole reply, if it is not simply the JSON of the answer.
        malformed: Whether the reply does not have the required form.
    """

    name: str
    answer: str | float = ""
    truth: str = "1000"
    exact: bool = False
    relative: float | None = None
    program: str | list[dict[str, object]] = ""
    right_program: str = ""
    program_share: float = 0.0
    reply: str = ""
    malformed: bool = False

    def solution(self, spec: RewardSpec) -> str:
        """Return the solution as the policy would write it in the format of the specification."""
        if spec.format == "plain":
            return str(self.answer)
        fields = {"answer": self.answer, **({"program": self.program} if self.program else {})}
        return self.reply or json.dumps(fields)

    def closeness(self, spec: RewardSpec) -> float:
        """The share of the numerical part that it earns with its error."""
        tolerance = spec.tolerances.percentage if "%" in self.truth else spec.tolerances.numerical
        if self.exact or self.relative is None or self.relative > tolerance:
            return 0.0
        return 1 - self.relative / tolerance if spec.decay == "linear" else 1.0


EXAMPLES = (
    _Example(name="exact", answer="1000", exact=True),
    _Example(name="1001 for 1000 is close", answer="1001", relative=0.001),
    _Example(name="50.5% for 50% is close", answer="50.5%", truth="50%", relative=0.01),
    _Example(name="empty answer", answer=""),
    _Example(name="empty truth", answer="1000", truth=""),
    _Example(name="wrong", answer="2000", relative=1.0),
    _Example(name="6 % off", answer="1060", relative=0.06),
    _Example(name="a number, not a text", answer=1000, exact=True),
    _Example(name="currency, thousands, zeros", answer="$1,000.00", exact=True),
    _Example(name="negative in brackets", answer="(32)", truth="-32", exact=True),
    _Example(name="50% for 0.5", answer="50%", truth="0.5", exact=True),
    _Example(name="50 for 0.5 lacks its sign", answer="50", truth="0.5"),
    _Example(name="more decimals than FinQA keeps", answer="0.1612903", truth="0.16129", exact=True),
    _Example(name="Yes for yes", answer="Yes", truth="yes", exact=True),
    _Example(name="no for yes", answer="no", truth="yes"),
    _Example(name="two answers", answer="1000 or 2000"),
)
WITH_PROGRAM = (
    _Example(
        name="right program",
        answer="0.01639",
        truth="0.01639",
        exact=True,
        program=_GROWTH,
        right_program=_GROWTH,
        program_share=1.0,
    ),
    _Example(
        name="right program as steps",
        answer="1.639%",
        truth="0.01639",
        exact=True,
        program=_STEPS,
        right_program=_GROWTH,
        program_share=1.0,
    ),
    _Example(
        name="right program on the table",
        answer="5829",
        truth="5829",
        exact=True,
        program="table_max(revenue, none)",
        right_program="table_max(revenue, none)",
        program_share=1.0,
    ),
    _Example(
        name="one of two steps",
        answer="94",
        truth="0.01639",
        program="subtract(5829, 5735)",
        right_program=_GROWTH,
        program_share=0.5,
    ),
    _Example(name="wrong program", answer="7", truth="0.01639", program="add(3, 4)", right_program=_GROWTH),
    _Example(name="program that is none", answer="1000", exact=True, program="add(1000", right_program=_GROWTH),
)
FORMATS = (
    _Example(name="fenced JSON", exact=True, reply='Here it is:\n```json\n{"answer": 1000}\n```'),
    _Example(name="fence without a name", exact=True, reply='```\n{"answer": "1000"}\n```'),
    _Example(name="no JSON", reply="The answer is 1000.", malformed=True),
    _Example(name="cut off", reply='{"answer": "1000", "program": "add(', malformed=True),
    _Example(name="no answer key", reply='{"program": "add(1, 2)"}', malformed=True),
    _Example(name="two answer keys", reply='{"answer": 2000, "answer": 1000}', malformed=True),
    _Example(name="empty reply", reply=" ", malformed=True),
)
EXPLANATION = "What was paid fell, as the rate fell."


def weighted(spec: RewardSpec) -> Iterator[Case]:
    """Tests of the weighted reward."""
    for example in _chosen(spec):
        parts = {
            "exact": spec.weights.exact * example.exact,
            "numerical": spec.weights.numerical * example.closeness(spec),
        }
        if spec.format == "json":
            parts["program"] = spec.weights.program * example.program_share
            parts["format"] = spec.weights.format * example.malformed
        yield _case(example, spec, {**parts, "total": sum(parts.values())})


def ternary(spec: RewardSpec) -> Iterator[Case]:
    """Tests of the ternary reward."""
    values = spec.ternary_mapping
    for example in _chosen(spec):
        tolerance = spec.tolerances.percentage if "%" in example.truth else spec.tolerances.numerical
        close = not example.truth or (example.relative is not None and example.relative <= tolerance)
        level = values.wrong if example.malformed else values.exact if example.exact else values.wrong
        if close and not (example.exact or example.malformed):
            level = values.close
        yield _case(example, spec, {"total": level})
    words = _Example(name="an explanation is not judged", answer=EXPLANATION, truth="a lower rate")
    question = "Why did interest expense fall?"
    yield _case(words, spec, {"total": values.close}, question=question)
    number = _Example(name="a number in words' place", answer=EXPLANATION, truth="12.5")
    yield _case(number, spec, {"total": values.wrong}, question="How did the rate change?")


def given(spec: RewardSpec, reward: str) -> Iterator[Case]:
    """The tests in the specification file for a reward."""
    for test in (test for test in spec.tests if test.reward == reward):
        yield Case(**test.model_dump(exclude={"reward"}))


def _chosen(spec: RewardSpec) -> tuple[_Example, ...]:
    return EXAMPLES if spec.format == "plain" else (*EXAMPLES, *WITH_PROGRAM, *FORMATS)


def _case(example: _Example, spec: RewardSpec, expected: dict[str, float], *, question: str = "") -> Case:
    return Case(
        name=example.name,
        expected=expected,
        solution=example.solution(spec),
        truth=example.truth,
        program=example.right_program,
        table=_TABLE,
        question=question,
    )
