"""The attempts of an evaluation, read back from its records, and figures of them with standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Environment
from finqa_cli.errors import DataError
from finqa_cli.rollout.measures import flat
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.statistics import MALFORMED, t_quantile
from finqa_cli.statistics.evaluation_report import is_correct
from finqa_cli.statistics.intervals import NO_SPREAD, unseen_share
from finqa_cli.statistics.student import two_sided
from finqa_cli.types import Observation, Rewards, Status, Task, ToolCall, Trajectory, Turn

MOST_PARTS = 60
"""Parts that are left out in turn; more would be slower and no better."""

Figure = Callable[[Sequence[Trajectory]], float | None]
"""A number of some attempts; None where they say nothing about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A figure with its 95 % interval; the p-value is of the figure being 0."""

    value: float
    low: float
    high: float
    p_value: float


def read_attempts(run: Path) -> list[Trajectory]:
    """The attempts of a run of `finqa eval`, without token ids.

    Raises:
        DataError: The file is not there, or a record is malformed.
    """
    file = run / "trajectories.jsonl"
    try:
        return [_attempt(record) for record in read_jsonl(file)]
    except FileNotFoundError as error:
        raise DataError(f"{run} has no trajectories.jsonl.", remedy="finqa eval again") from error
    except MALFORMED as error:
        raise DataError(f"{file} is not as finqa writes it: {error!r}.", remedy="finqa eval again") from error


def figure(of: str, environment: Callable[[], Environment]) -> Figure:
    """The figure that `Measure.of` names.

    Args:
        of: `accuracy`, `reward`, `components.NAME`, or a dotted name of what the environment measures.
        environment: Opens it, if it is needed.
    """
    if of == "accuracy":
        return lambda attempts: _mean([is_correct(each.components, each.total) for each in _rewards(attempts)])
    if of == "reward":
        return lambda attempts: _mean([each.total for each in _rewards(attempts)])
    if of.startswith("components."):
        name = of.removeprefix("components.")
        return lambda attempts: _mean([each.components[name] for each in _rewards(attempts) if name in each.components])
    measuring = environment()

    def measured(attempts: Sequence[Trajectory]) -> float | None:
        return flat(measuring.measure(attempts)).get(of)

    return measured


def jackknifed(calculate: Callable[[frozenset[str]], float | None], clusters: Sequence[str]) -> Estimated | None:
    """A figure with its standard error by the delete-a-group jackknife (Kott 2001, "The delete-a-group jackknife").

    The clusters are dealt out to at most `MOST_PARTS` parts, each of which is left out once; the interval is Student's
    with one degree of freedom less than there are parts. For a mean over equal clusters that is the clustered standard
    error. A figure that is no mean may be biased besides, which its interval does not tell: chance alone makes a
    calibration error greater, the most where calibration is good. With 2,000 attempts and ten bins, a calibrated policy
    and one that is always sure differ by 0.478 on average instead of 0.5, and the interval holds 0.5 in 65 % of cases
    instead of 95 % (simulated); between equally calibrated ones a difference is shown in 0 to 2 %. So such differences
    are understated. A Brier score is a mean.

    Args:
        calculate: The figure of the attempts at the questions of these clusters.
        clusters: All of them.

    Returns:
        None when there are fewer than two clusters, or the figure is not known of all parts.
    """
    known = sorted(set(clusters))
    count = min(len(known), MOST_PARTS)
    whole = calculate(frozenset(known))
    if count < 2 or whole is None:
        return None
    parts = [frozenset(known[place::count]) for place in range(count)]
    left = [calculate(frozenset(known) - part) for part in parts]
    values = [value for value in left if value is not None]
    if len(values) < count:
        return None
    center = math.fsum(values) / count
    error = math.sqrt((count - 1) / count * math.fsum((value - center) ** 2 for value in values))
    if error < NO_SPREAD:  # as in `paired_difference`
        margin = unseen_share(count, 0.95) * (1 + abs(whole))
        p_value = min(1.0, 2 * 0.5**count) if abs(whole) > NO_SPREAD else 1.0
    else:
        margin, p_value = t_quantile(0.975, count - 1) * error, two_sided(whole / error, count - 1)
    return Estimated(value=whole, low=whole - margin, high=whole + margin, p_value=p_value)


def graded(attempts: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that say something about the policy: they have a reward and ended in no fault."""
    return [each for each in attempts if each.rewards is not None and not each.status.is_fault]


def _rewards(attempts: Sequence[Trajectory]) -> list[Rewards]:
    return [each.rewards for each in graded(attempts) if each.rewards is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _attempt(record: Mapping[str, Any]) -> Trajectory:
    graded = record["reward"] is not None
    parts = {str(name): float(value) for name, value in record["components"].items()}
    return Trajectory(
        id=str(record["id"]),
        task=Task(**{name: str(record["task"][name]) for name in ("id", "prompt", "split", "cluster", "kind")}),
        member=int(record["member"]),
        seed=int(record["seed"]),
        status=Status(record["status"]),
        turns=tuple(map(_turn, record["turns"])),
        rewards=Rewards(total=float(record["reward"]), components=parts) if graded else None,
        error=str(record["error"]),
        metadata=dict(record["metadata"]),
    )


def _turn(record: Mapping[str, Any]) -> Turn:
    call, answer = record["tool_call"], record["observation"]
    return Turn(
        text=str(record["text"]),
        stop=str(record["stop"]),
        parse_error=str(record["parse_error"]),
        policy_version=int(record["policy_version"]),
        seconds=float(record["seconds"]),
        tool_call=ToolCall(name=call["name"], arguments=call["arguments"]) if call else None,
        observation=Observation(text=answer["text"], done=answer["done"], is_error=answer["is_error"])
        if answer is not None
        else None,
    )
