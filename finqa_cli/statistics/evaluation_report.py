"""The report of an evaluation, computed from its trajectories, and its table of attempts."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from finqa_cli.statistics.intervals import Interval, clustered_interval
from finqa_cli.statistics.outcomes import Outcome, identity_columns, is_right, read_outcome
from finqa_cli.types import Rewards, Status, Trajectory
from finqa_cli.types.token_use import TokenUse, total_use

_QUOTED_YEAR = re.compile(r"[\"`\[](?:19|20)\d{2}[\"`\]]")
_TEXT = re.compile(r"'(?:[^']|'')*'")
_IDENTIFIER = re.compile(r"\"[^\"]*\"|`[^`]*`|\[[^\]]*\]")
_LIMIT = re.compile(r"\b(?:limit|offset)\s+\d+", re.IGNORECASE)
_BARE_YEAR = re.compile(r"(?<![\w.'\"`\[])(?:19|20)\d{2}(?![\w.'\"`\]])")


@dataclass(frozen=True, slots=True, kw_only=True)
class KindReport:
    """Results of one question type.

    Attributes:
        episodes: Graded episodes.
        accuracy: Share of right episodes.
        reward_mean: Mean total reward.
    """

    episodes: int
    accuracy: float
    reward_mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Results of the graded episodes. Shares and means are over graded episodes unless noted otherwise.

    Attributes:
        episodes: All attempts, faults included.
        faults: Attempts that infrastructure ended; they are in no mean.
        questions: Questions with a graded attempt.
        clusters: Number of clusters of these questions.
        clustered_by: Name of a cluster, in the singular: `company`, `question`.
        accuracy: Share of right episodes: by the reward's part `correct` if it has one, else those with full reward.
        accuracy_interval: Clustered 95 % interval of the accuracy.
        reward_mean: Mean total reward.
        components: Mean of each named part of the reward, over the episodes that have it.
        turns_mean: Assistant turns per episode.
        sampled_tokens_mean: Sampled tokens per episode whose tokens are known; None if they are unknown.
        usage: Tokens and cost of all attempts; None if they are unknown.
        sql_queries: Number of SQL queries.
        sql_error_rate: Share of the queries that were refused or failed; None without queries.
        quoted_years: Share of the queries that quote every year, among those that use a year as a column; None without
            such queries.
        statuses: Attempts by status.
        by_kind: Results by question type.
        measures: Figures that the environment computes itself; empty where it has none.
        cut_replies: Graded episodes with a reply that was cut at the limit of tokens per generation, by question type;
            without the types that have none.
        reasons: Attempts that are not right by their reason, see `REASONS`; faults included.
    """

    episodes: int
    faults: int
    questions: int
    clusters: int
    clustered_by: str
    accuracy: float
    accuracy_interval: tuple[float, float]
    reward_mean: float
    components: Mapping[str, float]
    turns_mean: float
    sampled_tokens_mean: float | None
    sql_queries: int
    sql_error_rate: float | None
    quoted_years: float | None
    statuses: Mapping[str, int]
    by_kind: Mapping[str, KindReport]
    measures: Mapping[str, Any] = field(default_factory=dict)
    cut_replies: Mapping[str, int] = field(default_factory=dict)
    usage: Mapping[str, Any] | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-ready mapping."""
        return {**asdict(self), "accuracy_interval": list(self.accuracy_interval)}


def summarize(
    trajectories: Sequence[Trajectory],
    measures: Mapping[str, Any] | None = None,
    *,
    clustered_by: str = "cluster",
    uses: Mapping[str, TokenUse | None] = MappingProxyType({}),
) -> EvalReport:
    """Compute the report of an evaluation. Without a graded episode the accuracy is 0 with the interval [0, 1].

    Args:
        trajectories: All attempts, faults included.
        measures: Figures that the environment computes itself.
        clustered_by: See `EvalReport`.
        uses: Attempt id -> what it used, for attempts from records, which have no token ids.
    """
    graded = [(one, one.rewards) for one in trajectories if one.rewards is not None]
    used = {one.id: uses.get(one.id, one.use) for one in trajectories}
    interval = Interval(mean=0.0, standard_error=0.0, low=0.0, high=1.0, clusters=0)
    if graded:
        clusters = [one.task.cluster for one, _ in graded]
        interval = clustered_interval([float(is_right(one)) for one, _ in graded], clusters)
    components: dict[str, list[float]] = defaultdict(list)
    kinds: dict[str, list[tuple[Trajectory, Rewards]]] = defaultdict(list)
    for one, rewards in graded:
        kinds[one.task.kind].append((one, rewards))
        for name, value in rewards.components.items():
            components[name].append(value)
    queries = [
        (str(step.call.arguments.get("query", "")), step.observation)
        for one, _ in graded
        for turn in one.turns
        for step in turn.steps
        if step.call.name == "sql_query"
    ]
    quoting = [quotes for query, _ in queries if (quotes := quotes_years(query)) is not None]
    statuses = Counter(one.status for one in trajectories)
    return EvalReport(
        episodes=len(trajectories),
        faults=len(trajectories) - len(graded),
        questions=len({one.task.id for one, _ in graded}),
        clusters=interval.clusters,
        clustered_by=clustered_by,
        accuracy=interval.mean,
        accuracy_interval=(interval.low, interval.high),
        reward_mean=_mean(rewards.total for _, rewards in graded) or 0.0,
        components={name: statistics.fmean(values) for name, values in sorted(components.items())},
        turns_mean=_mean(len(one.turns) for one, _ in graded) or 0.0,
        sampled_tokens_mean=_mean(use.sampled for one, _ in graded if (use := used[one.id]) is not None),
        usage=None if (total := total_use(used.values())) is None else total.to_dict(),
        sql_queries=len(queries),
        sql_error_rate=_mean(observation is None or observation.is_error for _, observation in queries),
        quoted_years=_mean(quoting),
        statuses={status.value: statuses[status] for status in Status},
        by_kind={
            kind: KindReport(
                episodes=len(members),
                accuracy=statistics.fmean(is_right(one) for one, _ in members),
                reward_mean=statistics.fmean(rewards.total for _, rewards in members),
            )
            for kind, members in sorted(kinds.items())
        },
        measures=measures or {},
        cut_replies=dict(sorted(Counter(one.task.kind for one, _ in graded if _has_cut_reply(one)).items())),
    )


def describe_cut_replies(cut: Mapping[str, int], episodes: Mapping[str, int], limit: int) -> str:
    """Return a sentence on replies that were cut, with the setting that avoids it; empty if there are none.

    Args:
        cut: Episodes with a cut reply by question type.
        episodes: All episodes by question type.
        limit: Limit of tokens per generation.
    """
    if not cut:
        return ""
    worst = sorted(cut, key=lambda kind: (-cut[kind] / episodes[kind], kind))
    kinds = ", ".join(f"{kind} {cut[kind]} of {episodes[kind]}" for kind in worst if kind)
    return (
        f"Replies of {sum(cut.values())} of {sum(episodes.values())} episodes were cut at --max-gen-tokens {limit}"
        f"{f' ({kinds})' if kinds else ''}; --max-gen-tokens {2 * limit} would let them end"
    )


def _has_cut_reply(trajectory: Trajectory) -> bool:
    """Whether a limit of tokens ended a reply; an empty one found no room in the context, which is another limit."""
    return any(turn.stop == "length" and turn.text for turn in trajectory.turns)


def item_rows(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per attempt, for a spreadsheet; right answers are empty where they are not recorded.

    Args:
        records: Records of trajectories.jsonl.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, OverflowError: See `read_outcome`.
    """
    return [_item_row(record, read_outcome(record)) for record in records]


def _item_row(record: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    values = record.get("values", {})
    return {
        **identity_columns(outcome),
        "reward": outcome.reward,
        "turns": outcome.turns,
        "question": outcome.prompt,
        "answer": outcome.answer,
        "truth": record.get("truth", ""),
        "answer_read_as": values.get("answer", ""),
        "truth_read_as": values.get("truth", ""),
        "explanation": outcome.explanation,
    }


def quotes_years(query: str) -> bool | None:
    """Whether a query quotes every year that it uses as a column; None when it uses none.

    Text in single quotes is a value, not a column.
    """
    columns = _TEXT.sub("''", query)
    if _BARE_YEAR.search(_LIMIT.sub("", _IDENTIFIER.sub("x", columns))):
        return False
    return True if _QUOTED_YEAR.search(columns) else None


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return statistics.fmean(numbers) if numbers else None
