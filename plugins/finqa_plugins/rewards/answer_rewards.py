"""The rewards that compare an answer with the truth: `weighted`, `ternary` and `graded`.

The first two are those of `reward_spec.yaml`, from the RL-LLM FinQA pipeline: `weighted` sums an exact or numerical
part and a program part, minus a penalty for bad format; by default, `ternary` is +1 for exact, 0 for close or not
judgeable, and -1 for wrong. `graded` is the verdict of a grading profile, in any environment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.grading import STRICT, Profile, grade, versioned
from finqa_cli.grading.answers import Case, Reply
from finqa_cli.grading.programs import Program, ProgramError, execute, overlap, parse
from finqa_cli.types import Rewards
from finqa_plugins.rewards.cases import given, ternary, weighted
from finqa_plugins.rewards.reward_comparison import Match, compare, is_prose
from finqa_plugins.rewards.spec import (
    Decay,
    Format,
    Reader,
    RewardWeights,
    Strict,
    TernaryMapping,
    Tolerances,
    read_solution,
    resolve,
    weights_of,
)

_OPEN_QUESTION = re.compile(r"\b(?:why|how|explain)\b", re.IGNORECASE)
_LEAST_EXPLANATION = 11


class SpecConfig(Strict):
    """Options of a reward that follows a specification; given options have priority over the file."""

    spec: Path | None = Field(default=None, description="A reward_spec.yaml; `finqa rewards show weighted` prints one.")
    tolerances: Tolerances = Field(
        default=Tolerances(),
        description="Largest relative errors of close answers; percentage: if the truth has a %.",
    )
    format: Format = Field(default="json", description="`json`: replies are JSON; `plain`: the solution is the answer.")
    profile: Reader = Field(
        default="strict",
        validate_default=True,
        description="Grading profile that reads answers and truths: strict, or one of its versions.",
    )


class SpecReward(Reward):
    """A reward that follows a specification."""

    def __init__(self, config: SpecConfig) -> None:
        """Raises ConfigError if the file is missing or wrong."""
        self._spec = resolve(config, config.spec)

    def spec(self) -> dict[str, Any]:
        """Return the specification in force, JSON-ready."""
        return self._spec.model_dump(mode="json")

    def compare(self, answer: str, request: RewardRequest) -> Match:
        """Compare an answer with the truth of a request."""
        question = str(request.extra_info.get("question", ""))
        return compare(answer, request.truth, question, profile=self._spec.profile)


class WeightedConfig(SpecConfig):
    """Options of the weighted reward."""

    weights: Annotated[RewardWeights, BeforeValidator(weights_of)] = Field(
        default=RewardWeights(),
        description="Weights of the parts, some or all, also as a text: 'exact=1.0,numerical=0.8'.",
    )
    decay: Decay = Field(
        default="linear",
        description="`linear`: the numerical part decreases to 0 at the tolerance; `flat`: it is constant.",
    )


class Weighted(SpecReward):
    """The parts `exact`, `numerical`, `program` and `format`, each times its weight; their sum is the total.

    With `format: plain` only `exact` and `numerical` exist: there is no program, and no reply can be malformed.
    """

    def score(self, request: RewardRequest) -> Rewards:
        """Sum the parts of the answer and its program; a malformed reply only gets the penalty."""
        reply = read_solution(request.solution, self._spec.format)
        match = self.compare(reply.answer_text, request)
        weights = self._spec.weights
        parts = {"exact": weights.exact * match.exact, "numerical": weights.numerical * self._closeness(match)}
        if self._spec.format == "json":
            parts["program"] = weights.program * program_share(reply.program, request, self._spec.profile)
            parts["format"] = 0.0 if reply.ok else weights.format
        why = _explanation(reply, match, parts) if request.truth.strip() or not reply.ok else "no truth to compare with"
        return Rewards(total=sum(parts.values()), components=parts, explanation=why)

    def cases(self) -> Sequence[Case]:
        """Return built-in tests under this specification, and those of its file."""
        return (*weighted(self._spec), *given(self._spec, "weighted"))

    def _closeness(self, match: Match) -> float:
        """Return 1 for a close answer, with linear decay falling to 0 at the tolerance; 0 for an exact or wrong one."""
        tolerances = self._spec.tolerances
        if match.exact or match.relative is None or not match.within(tolerances):
            return 0.0
        return 1.0 if self._spec.decay == "flat" else 1.0 - match.relative / match.tolerance(tolerances)


def _explanation(reply: Reply, match: Match, parts: dict[str, float]) -> str:
    """Return one line that does not contain the truth."""
    if not reply.ok:
        return f"malformed: {reply.error}"
    answer = (
        "exact" if match.exact else "close" if parts["numerical"] else "wrong" if reply.answer_text else "no answer"
    )
    return f"{answer}, program {parts['program']:g}" if reply.program else answer


def program_share(written: str, request: RewardRequest, profile: Profile = STRICT) -> float:
    """Return the share of the program part that a written program earns, from 0 to 1.

    It is 1 when the program's result is the truth, else the share of the right program's steps that it has.

    More steps than the right program has lower that share, so that writing every possible step does not help. A text
    that is not a program gets 0; without a right program only the result counts.
    """
    try:
        program = parse(written)
    except ProgramError:
        return 0.0
    return 1.0 if _yields(program, request, profile) else _share_of_steps(program, request.program)


def _yields(program: Program, request: RewardRequest, profile: Profile) -> bool:
    try:
        result = execute(program, request.table)
    except ProgramError:
        return False
    return compare(str(result), request.truth, profile=profile).exact


def _share_of_steps(program: Program, right: str) -> float:
    try:
        expected = parse(right)
    except ProgramError:  # the data has none, or one that its own language does not know: no step can be compared
        return 0.0
    steps = len(expected.steps)
    return overlap(program, expected) * steps / max(steps, len(program.steps))


class TernaryConfig(SpecConfig):
    """Options of the ternary reward."""

    ternary_mapping: TernaryMapping = Field(
        default=TernaryMapping(), description="Rewards of exact, close and wrong answers."
    )


class Ternary(SpecReward):
    """Three values. The parts are `exact`, `close` and `wrong`: one has the value of the total, the others are 0."""

    def score(self, request: RewardRequest) -> Rewards:
        """Judge an answer as exact, close or wrong.

        Answers that cannot be judged count as close: any answer if the truth is empty, and one of more than 10
        characters to a why, how or explain question whose truth is text.
        """
        reply = read_solution(request.solution, self._spec.format)
        if not reply.ok:
            return self._rewards("wrong", reply.error)
        answer = reply.answer_text
        if not request.truth.strip():
            return self._rewards("close", "no truth to compare with")
        match = self.compare(answer, request)
        if match.exact:
            return self._rewards("exact", "exact")
        if match.within(self._spec.tolerances):
            return self._rewards("close", "within the tolerance")
        if len(answer) >= _LEAST_EXPLANATION and _is_open(request):
            return self._rewards("close", "an explanation, which is not judged")
        return self._rewards("wrong", "wrong" if answer else "no answer")

    def cases(self) -> Sequence[Case]:
        """Return built-in tests under this specification, and those of its file."""
        return (*ternary(self._spec), *given(self._spec, "ternary"))

    def _rewards(self, level: str, why: str) -> Rewards:
        values: dict[str, float] = self._spec.ternary_mapping.model_dump()
        parts = {name: value if name == level else 0.0 for name, value in values.items()}
        return Rewards(total=values[level], components=parts, explanation=why)


def _is_open(request: RewardRequest) -> bool:
    question = request.extra_info.get("question") or request.task.prompt
    return is_prose(request.truth) and bool(_OPEN_QUESTION.search(str(question)))


class GradedConfig(Strict):
    """Options of the graded reward."""

    profile: Annotated[Profile, AfterValidator(versioned)] = Field(
        default="strict", validate_default=True, description="Grading profile; strict: the newest version of its rules."
    )
    format: Format = Field(
        default="plain",
        description="`plain`: the solution is the answer; `json`: the solution is JSON that contains it.",
    )


class Graded(Reward):
    """1 if the answer is right, else 0; the part has the profile's name without its version."""

    def __init__(self, config: GradedConfig) -> None:
        self.config = config

    def score(self, request: RewardRequest) -> Rewards:
        """Return the profile's verdict."""
        reply = read_solution(request.solution, self.config.format)
        part = self.config.profile.partition("-")[0]
        if not reply.ok:
            return Rewards(total=0.0, components={part: 0.0}, explanation=reply.error)
        question = str(request.extra_info.get("question", ""))
        verdict = grade(reply.answer, request.truth, self.config.profile, question)
        return Rewards(total=verdict.reward, components={part: verdict.reward}, explanation=verdict.explanation)

    def spec(self) -> dict[str, Any]:
        """Return the options, JSON-ready."""
        return self.config.model_dump(mode="json")
