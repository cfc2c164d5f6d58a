"""From trajectories to a report and a table."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from finqa_cli.grading.answers import parse_reply
from finqa_cli.statistics.intervals import Interval, clustered_interval
from finqa_cli.types import Status, Trajectory, Turn

RIGHT = 1.0 - 1e-9
_SHOWN_CHARACTERS = 200
_QUOTED_YEAR = re.compile(r"[\"`\[](?:19|20)\d{2}[\"`\]]")
_TEXT = re.compile(r"'(?:[^']|'')*'")
_IDENTIFIER = re.compile(r"\"[^\"]*\"|`[^`]*`|\[[^\]]*\]")
_LIMIT = re.compile(r"\b(?:limit|offset)\s+\d+", re.IGNORECASE)
_BARE_YEAR = re.compile(r"(?<![\w.'\"`\[])(?:19|20)\d{2}(?![\w.'\"`\]])")


@dataclass(frozen=True, slots=True, kw_only=True)
class KindReport:
    """One question type."""

    episodes: int
    accuracy: float
    reward_mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """What the graded episodes came to. Shares and means are over graded episodes unless they say otherwise.

    Attributes:
        episodes: All attempts, faults included.
        faults: Attempts that infrastructure ended; they are in no mean.
        clusters: Of questions among the graded.
        clustered_by: What a cluster is, in the singular: `company`, `question`.
        accuracy: Share that is right: by the reward's part `correct` where it has one, else with full reward.
        accuracy_interval: 95 %, clustered.
        reward_mean: Mean total reward.
        components: Mean of each named part of the reward, over the episodes that have it.
        turns_mean: Assistant turns per episode.
        sampled_tokens_mean: Sampled tokens per episode; 0 for engines without tokens.
        sql_queries: SQL queries in all.
        sql_error_rate: Share of them that were refused or failed; None without queries.
        quoted_years: Among queries that name a year as a column, the share that quotes every one; None without any.
        statuses: Attempts by status.
        by_kind: The same by question type.
        measures: Figures of the environment's own (`Measures`); empty where it has none.
    """

    episodes: int
    faults: int
    clusters: int
    clustered_by: str
    accuracy: float
    accuracy_interval: tuple[float, float]
    reward_mean: float
    components: Mapping[str, float]
    turns_mean: float
    sampled_tokens_mean: float
    sql_queries: int
    sql_error_rate: float | None
    quoted_years: float | None
    statuses: Mapping[str, int]
    by_kind: Mapping[str, KindReport]
    measures: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "accuracy_interval": list(self.accuracy_interval)}


def summarize(
    trajectories: Sequence[Trajectory], measures: Mapping[str, Any] | None = None, *, clustered_by: str = "cluster"
) -> EvalReport:
    """Sums up. Without a single graded episode accuracy is 0 with the interval [0, 1].

    Args:
        trajectories: Faulted ones among them.
        measures: What the environment itself says about them.
        clustered_by: See `EvalReport`.
    """
    graded = [trajectory for trajectory in trajectories if trajectory.reward is not None]
    right = [float(is_right(trajectory)) for trajectory in graded]
    interval = (
        clustered_interval(right, [trajectory.task.cluster for trajectory in graded])
        if graded
        else Interval(mean=0.0, standard_error=0.0, low=0.0, high=1.0, clusters=0)
    )
    queries = [turn for trajectory in graded for turn in trajectory.turns if _is_query(turn)]
    quoting = [quotes for turn in queries if (quotes := quotes_years(_query(turn))) is not None]
    return EvalReport(
        episodes=len(trajectories),
        faults=len(trajectories) - len(graded),
        clusters=interval.clusters,
        clustered_by=clustered_by,
        accuracy=interval.mean,
        accuracy_interval=(interval.low, interval.high),
        reward_mean=_mean(map(_reward, graded)) or 0.0,
        components=_components(graded),
        turns_mean=_mean(len(trajectory.turns) for trajectory in graded) or 0.0,
        sampled_tokens_mean=_mean(sum(len(turn.completion_ids) for turn in trajectory.turns) for trajectory in graded)
        or 0.0,
        sql_queries=len(queries),
        sql_error_rate=_mean(_failed(turn) for turn in queries),
        quoted_years=_mean(quoting),
        statuses=_counts(trajectories),
        by_kind=_by_kind(graded),
        measures=measures or {},
    )


def item_rows(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """One row per attempt, for a spreadsheet."""
    return [
        {
            "id": trajectory.task.id,
            "member": trajectory.member,
            "company": trajectory.task.cluster,
            "type": trajectory.task.kind,
            "status": trajectory.status.value,
            "reward": trajectory.reward,
            "turns": len(trajectory.turns),
            "answer": _answer(trajectory),
            "explanation": trajectory.rewards.explanation if trajectory.rewards else trajectory.error,
        }
        for trajectory in trajectories
    ]


def quotes_years(query: str) -> bool | None:
    """True when every year column of a query is quoted, False when one is bare, None when it names none.

    Text in single quotes is a value and no column.
    """
    columns = _TEXT.sub("''", query)
    if _BARE_YEAR.search(_LIMIT.sub("", _IDENTIFIER.sub("x", columns))):
        return False
    return True if _QUOTED_YEAR.search(columns) else None


def _reward(trajectory: Trajectory) -> float:
    assert trajectory.reward is not None
    return trajectory.reward


def is_correct(components: Mapping[str, float], total: float) -> bool:
    """The verdict: the reward's part `correct` where it has one, else whether the reward is full."""
    return components.get("correct", total) >= RIGHT


def stated_answer(calls: Sequence[tuple[str, Mapping[str, Any]]], text: str) -> str:
    """What an episode answered: what was submitted last, else what its last text states, or the text's beginning.

    Args:
        calls: Name and arguments of its tool calls in turn.
        text: The last text of an episode without tools; empty with tools.
    """
    submitted = [arguments for name, arguments in calls if name == "submit_answer"]
    if submitted:
        return str(submitted[-1].get("answer", ""))
    reply = parse_reply(text)
    return reply.answer_text if reply.ok else text[:_SHOWN_CHARACTERS]


def is_right(trajectory: Trajectory) -> bool:
    """The verdict on a graded attempt; see `is_correct`."""
    assert trajectory.rewards is not None
    return is_correct(trajectory.rewards.components, trajectory.rewards.total)


def _components(graded: Sequence[Trajectory]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for trajectory in graded:
        assert trajectory.rewards is not None
        for name, value in trajectory.rewards.components.items():
            values[name].append(value)
    return {name: sum(parts) / len(parts) for name, parts in sorted(values.items())}


def _is_query(turn: Turn) -> bool:
    return turn.tool_call is not None and turn.tool_call.name == "sql_query"


def _query(turn: Turn) -> str:
    assert turn.tool_call is not None
    return str(turn.tool_call.arguments.get("query", ""))


def _failed(turn: Turn) -> bool:
    return turn.observation is None or turn.observation.is_error


def _answer(trajectory: Trajectory) -> str:
    calls = [(turn.tool_call.name, turn.tool_call.arguments) for turn in trajectory.turns if turn.tool_call is not None]
    text = "" if trajectory.tools or not trajectory.turns else trajectory.turns[-1].text
    return stated_answer(calls, text)


def _counts(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    counts = Counter(trajectory.status for trajectory in trajectories)
    return {status.value: counts[status] for status in Status}


def _by_kind(graded: Sequence[Trajectory]) -> dict[str, KindReport]:
    kinds: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in graded:
        kinds[trajectory.task.kind].append(trajectory)
    return {
        kind: KindReport(
            episodes=len(members),
            accuracy=sum(map(is_right, members)) / len(members),
            reward_mean=sum(map(_reward, members)) / len(members),
        )
        for kind, members in sorted(kinds.items())
    }


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None
