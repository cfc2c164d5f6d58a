"""What a report shows of one run, as JSON values: head, nodes, curves with intervals, breakdowns, steps and rows."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from finqa_cli.masking import masked
from finqa_cli.publishing.report.report_progress import progress_document
from finqa_cli.publishing.report.report_records import Episode, RunRecords
from finqa_cli.runs.run_nodes import NodeState, RunNodes, time_text
from finqa_cli.settings import is_embedded
from finqa_cli.statistics import REASONS, clustered_interval, mean_interval, reward_interval
from finqa_cli.types.token_use import total_use

LEVEL = 0.95

COLUMNS = (
    *("id", "question", "phase", "iteration", "group", "member", "status", "correct", "reward", "advantage", "answer"),
    *("reason", "explanation", "turns", "calls", "failed_calls", "prompt_tokens", "tokens", "seconds", "retries"),
    *("recoveries", "version_low", "version_high"),
)
"""Fields of a row, in order; `question` is an index into the list `questions`, `group` into the list `groups`."""

MOST_DIFFERING = 200
"""Attempts that the report lists of those on which strict rules and judge disagree."""

LOST, BACK = "fault", "right"
"""CSS classes of the page for lost and for recovered parts."""

_CHANGES = {
    "engine_left_out": "left out",
    "engine_away": "does not answer",
    "engine_back": "back",
    "worker_lost": "lost",
    "worker_back": "back",
}

_Measure = Callable[[Episode], float | None]

_SHIPPED = "finqa_plugins"
"""Folder of the package with the small policies."""

COUNTS = ("errors", "length", "turns")
"""Curves of counts, whose intervals end at 0."""

MEASURED: tuple[tuple[str, str, str, _Measure], ...] = (
    ("reward", "Reward", "mean total reward of an attempt", lambda one: one.outcome.reward),
    (
        *("accuracy", "Accuracy", "share of attempts that are right"),
        lambda one: None if one.outcome.correct is None else float(one.outcome.correct),
    ),
    (
        *("errors", "Errors", "rejected or invalid tool calls per attempt"),
        lambda one: None if one.outcome.correct is None else float(one.failed_calls),
    ),
    (
        *("length", "Length", "sampled tokens per attempt"),
        lambda one: None if one.outcome.correct is None or one.outcome.tokens is None else float(one.outcome.tokens),
    ),
    (
        *("turns", "Turns", "assistant turns per attempt"),
        lambda one: None if one.outcome.correct is None else float(one.outcome.turns),
    ),
)
"""Curves of means over attempts: key, title, explanation, and a function for an attempt's value (None: not counted)."""

RECORDED = (
    (
        *("kl", "KL"),
        "estimated KL divergence of the policy in an update from the one that sampled, nats per token; about 0 while "
        "both have the same weights",
    ),
    ("entropy", "Entropy", "entropy of the policy's next token, nats; 0 if it always chooses the same"),
    (
        *("staleness_mean", "Staleness"),
        "policy versions between sampling and training, mean over tokens; 0 if no rollouts run ahead",
    ),
    (
        "logprob_difference_mean",
        "Mismatch",
        "mean difference of the log-probabilities of sampled tokens, engine minus learner; only rounding errors if "
        "both compute the same policy",
    ),
    ("loss", "Loss", "mean over the updates of an iteration"),
    ("grad_norm", "Gradient norm", "largest of an iteration, before clipping"),
)
"""Curves of single numbers of metrics.jsonl, for which no interval can be computed."""


def run_document(
    records: RunRecords, shown: Sequence[Episode], advantages: Mapping[str, float | None], notes: Iterable[str]
) -> dict[str, Any]:
    """Returns all data of a run's page except the details of its attempts.

    Args:
        records: The run.
        shown: The attempts that get a row.
        advantages: Id of a trained attempt -> its advantage.
        notes: Remarks for the reader, such as what was left out.
    """
    questions = questions_of(shown)
    places = {question["id"]: place for place, question in enumerate(questions)}
    groups = list(dict.fromkeys(episode.group for episode in shown))
    group_places = {group: place for place, group in enumerate(groups)}
    return {
        **figures(records),
        "notes": list(notes),
        "steps": steps(records.metrics),
        "settings": flatten(records.settings),
        "columns": list(COLUMNS),
        "questions": questions,
        "groups": groups,
        "rows": [
            row_of(episode, places[episode.outcome.question], group_places[episode.group], advantages.get(episode.id))
            for episode in shown
        ],
    }


def figures(records: RunRecords) -> dict[str, Any]:
    """Returns the numbers of a run that are computed from all its attempts, and its nodes."""
    scored = scored_episodes(records)
    return {
        "head": head(records, scored),
        "progress": progress_document(records),
        "curves": curves(records),
        "breakdown": breakdown(scored),
        "judged": judged(scored),
        "nodes": nodes_document(records.nodes),
    }


def scored_episodes(records: RunRecords) -> tuple[Episode, ...]:
    """Returns the attempts that the score is computed from: those of the last evaluation, else all."""
    evaluated = [episode for episode in records.episodes if episode.phase == "eval"]
    if not evaluated:
        return records.episodes
    last = max(episode.iteration for episode in evaluated)
    return tuple(episode for episode in evaluated if episode.iteration == last)


def head(records: RunRecords, scored: Sequence[Episode]) -> dict[str, Any]:
    """Returns the head of a run's page, such as score with interval, cost, versions and commit."""
    facts, manifest = records.facts, records.manifest
    created, finished = str(facts.get("created", "")), str(facts.get("finished", ""))
    inputs = manifest.get("inputs") if isinstance(manifest.get("inputs"), Mapping) else {}
    policy, data = _mapping(inputs, "policy"), _mapping(inputs, "data")
    used = total_use(episode.use for episode in records.episodes)
    versions = {"finqa": facts.get("finqa"), "python": facts.get("python"), **_mapping(manifest, "versions")}
    return {
        "label": records.path.resolve().name,
        "command": str(facts.get("command", "")),
        "status": str(facts.get("status", "")),
        "created": created,
        "finished": finished,
        "resumed": len(facts.get("resumed") or ()),
        "commit": str(facts.get("commit") or ""),
        "versions": {str(name): str(version) for name, version in versions.items() if version},
        "policy": _policy(policy, str(_mapping(records.settings, "model").get("name", ""))),
        "data": {name: str(data[name]) for name in ("name", "digest") if data.get(name)},
        "rules": _rules(_mapping(records.settings, "environment")),
        "score": score(records, scored),
        "cost": {
            "seconds": _seconds_between(created, finished),
            "episodes": len(records.episodes),
            "episode_seconds": math.fsum(episode.outcome.seconds for episode in records.episodes),
            "sampled_tokens": used.sampled if used else None,
            "prompt_tokens": used.prompt if used else None,
            "cost_usd": used.cost_usd if used else None,
            "usage": used.text() if used else "unknown",
            "tool_calls": sum(episode.calls for episode in records.episodes),
            "trained_tokens": sum(int(record.get("tokens") or 0) for record in records.metrics),
        },
    }


def _rules(environment: Mapping[str, Any]) -> str:
    """Returns environment and grader of a run, as far as its settings name them: `finqa, grader strict`."""
    options = environment.get("options")
    grader = options.get("grader") if isinstance(options, Mapping) else None
    return ", ".join(
        [*([str(environment["name"])] if environment.get("name") else []), *([f"grader {grader}"] * bool(grader))]
    )


def _policy(recorded: Mapping[str, Any], name: str) -> dict[str, str]:
    """Returns what a manifest records of a policy; a small policy that ships with finqa has its name, not its folder.

    Args:
        recorded: The policy in the manifest.
        name: The setting `model.name`.
    """
    found = {key: str(recorded[key]) for key in ("model", "adapter", "number", "sha256") if recorded.get(key)}
    if is_embedded(name) and _SHIPPED in Path(found.get("model", "")).parts:
        found["model"] = name
    return found


def nodes_document(nodes: RunNodes) -> dict[str, Any] | None:
    """Returns the nodes and the changes of their state; None for a run on one machine.

    Returns:
        `nodes`, a list of [address, engine replicas, numbers of learner processes, rollout workers], in which replicas
        and workers are [number, state in words, class]; and `changes`, a list of [time, node, part, state, class,
        reason].
    """
    if not (states := nodes.states()):
        return None
    return {"nodes": [_node(state) for state in states], "changes": [_change(record) for record in nodes.changes]}


def _node(state: NodeState) -> list[Any]:
    replicas = [[one.number, one.text, LOST if one.left_out else BACK if one.back else ""] for one in state.replicas]
    workers = [[number, "lost", LOST] if number in state.lost else [number, "", ""] for number in state.workers]
    return [state.node, replicas, list(state.ranks), workers]


def _change(record: Mapping[str, Any]) -> list[Any]:
    name = str(record["event"])
    kind = "engine replica" if name.startswith("engine_") else "rollout worker"
    number = record.get("replica" if name.startswith("engine_") else "worker")
    is_number = isinstance(number, int) and not isinstance(number, bool)
    return [
        time_text(record.get("time"), "%Y-%m-%d %H:%M:%S"),
        str(record.get("node") or ""),
        f"{kind} {number}" if is_number else kind,
        _CHANGES[name],
        BACK if name.endswith("_back") else LOST,
        str(masked(str(record.get("reason") or ""))),
    ]


def score(records: RunRecords, scored: Sequence[Episode]) -> dict[str, Any] | None:
    """Returns the accuracy with its interval as `finqa eval` computes it; None without a graded attempt."""
    graded = [episode.outcome for episode in scored if episode.outcome.correct is not None]
    if not graded:
        return None
    interval = clustered_interval(
        [float(bool(outcome.correct)) for outcome in graded], [outcome.company for outcome in graded], level=LEVEL
    )
    evaluations = [record for record in records.metrics if record.get("kind") == "eval"]
    named = records.report.get("clustered_by") or (evaluations[-1].get("clustered_by") if evaluations else None)
    return {
        "accuracy": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "level": LEVEL,
        "attempts": len(graded),
        "questions": len({outcome.question for outcome in graded}),
        "clusters": interval.clusters,
        "clustered_by": str(named or "cluster"),
        "reward": math.fsum(outcome.reward or 0.0 for outcome in graded) / len(graded),
        "faults": len(scored) - len(graded),
        "phase": scored[0].phase,
        "iteration": scored[0].iteration,
        "split": ", ".join(sorted({outcome.split for outcome in graded})),
    }


def curves(records: RunRecords) -> list[dict[str, Any]]:
    """Returns curves over the steps; a point is [step, mean, low, high, attempts], with null ends where unknown.

    Intervals of evaluations are clustered like the score, by company or what the environment names; others by question,
    because the attempts of a group are at one question.
    """
    by_step: dict[tuple[str, int], list[Episode]] = defaultdict(list)
    for episode in records.episodes:
        by_step[episode.phase, episode.iteration].append(episode)
    bounded = all(0 <= (episode.outcome.reward or 0.0) <= 1 for episode in records.episodes)
    shares = {"accuracy", "reward"} if bounded else {"accuracy"}
    found: list[dict[str, Any]] = []
    for key, title, what, value_of in MEASURED:
        series = []
        for phase in sorted({phase for phase, _ in by_step}, reverse=True):
            chosen = sorted((step, members) for (name, step), members in by_step.items() if name == phase)
            facts = {"shares": key in shares, "count": key in COUNTS, "by_cluster": phase == "eval"}
            points = [point for step, members in chosen if (point := _point(step, members, value_of, **facts))]
            if points:
                series.append({"phase": phase, "points": points})
        if series:
            found.append({"key": key, "title": title, "what": what, "interval": True, "series": series})
    trained = [record for record in records.metrics if record.get("kind") != "eval"]
    for key, title, what in RECORDED:
        points = [
            [step, value, None, None, None]
            for record in trained
            if (value := _number(record.get(key))) is not None and (step := _step(record)) is not None
        ]
        if points:
            series = [{"phase": "train", "points": points}]
            found.append({"key": key, "title": title, "what": what, "interval": False, "series": series})
    return found


def _point(
    step: int,
    members: Sequence[Episode],
    value_of: _Measure,
    *,
    shares: bool,
    count: bool = False,
    by_cluster: bool = False,
) -> list[Any] | None:
    pairs = [(value, one.outcome) for one in members if (value := value_of(one)) is not None]
    if not pairs:
        return None
    values = [value for value, _ in pairs]
    clusters = [one.company if by_cluster else one.question for _, one in pairs]
    interval = reward_interval if shares else mean_interval
    low, high = interval(values, clusters, level=LEVEL) or (None, None)
    if count and low is not None:
        low = max(0.0, low)
    return [step, math.fsum(values) / len(values), low, high, len(values)]


def breakdown(scored: Sequence[Episode]) -> dict[str, Any]:
    """Returns the accuracy by question type, with intervals clustered like those of `curves`, and why attempts are not
    right.
    """
    evaluated = any(episode.phase == "eval" for episode in scored)
    kinds: dict[str, list[Episode]] = defaultdict(list)
    for episode in scored:
        if episode.outcome.correct is not None:
            kinds[episode.outcome.kind].append(episode)
    reasons = Counter(episode.outcome.reason for episode in scored if episode.outcome.reason)
    return {
        "kinds": [[kind, *(_accuracy(kinds[kind], by_cluster=evaluated) or [])[1:]] for kind in sorted(kinds)],
        "reasons": [[reason, text, reasons[reason]] for reason, text in REASONS.items() if reasons[reason]],
    }


def judged(scored: Sequence[Episode]) -> dict[str, Any] | None:
    """Returns the accuracy by strict rules and with their judge, and what they disagree on; None without a judge."""
    graded = [episode for episode in scored if episode.outcome.part("judged") is not None]
    if not graded:
        return None
    strict, right = ([bool(one.outcome.part(name)) for one in graded] for name in ("strict", "correct"))
    differing = [one for one, by_rules, judge in zip(graded, strict, right, strict=True) if by_rules != judge]
    return {
        "attempts": len(graded),
        "judged": sum(bool(one.outcome.part("judged")) for one in graded),
        "strict": sum(strict) / len(graded),
        "with_judge": sum(right) / len(graded),
        "differing": [
            [one.id, one.outcome.prompt, one.outcome.answer, one.outcome.explanation]
            for one in differing[:MOST_DIFFERING]
        ],
        "left_out": max(0, len(differing) - MOST_DIFFERING),
    }


def _accuracy(members: Sequence[Episode], *, by_cluster: bool) -> list[Any] | None:
    return _point(0, members, MEASURED[1][3], shares=True, by_cluster=by_cluster)


def steps(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the numbers of each line of metrics as [dotted name, value], for the page's slider over the steps."""
    return [
        {
            "kind": str(record.get("kind", "")),
            "iteration": step,
            "values": [
                pair
                for pair in flatten(record)
                if pair[0] not in ("schema_version", "kind", "iteration", "policy_version")
            ],
            "version": _number(record.get("policy_version")),
        }
        for record in metrics
        if (step := _step(record)) is not None
    ]


def flatten(value: Mapping[str, Any], prefix: str = "") -> list[list[Any]]:
    """Returns nested mappings as a list of [dotted name, value]; lists and empty mappings are not taken apart."""
    found: list[list[Any]] = []
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            found += flatten(item, f"{prefix}{name}.")
        elif isinstance(item, (Mapping, list, tuple)):
            found.append([f"{prefix}{name}", ", ".join(map(str, item)) if item else "none"])
        elif isinstance(item, float):
            found.append([f"{prefix}{name}", item if math.isfinite(item) else str(item)])
        else:
            found.append([f"{prefix}{name}", item])
    return found


def questions_of(episodes: Sequence[Episode]) -> list[dict[str, str]]:
    """Returns the facts of each question, in the order in which the questions first occur in the attempts."""
    found: dict[str, dict[str, str]] = {}
    for one in (episode.outcome for episode in episodes):
        facts = {"id": one.question, "cluster": one.company, "kind": one.kind, "split": one.split, "prompt": one.prompt}
        found.setdefault(one.question, facts)
    return list(found.values())


def row_of(episode: Episode, question: int, group: int, advantage: float | None) -> list[Any]:
    """Returns the fields of `COLUMNS` for an attempt; question and group are indices into the lists of that name."""
    one = episode.outcome
    low, high = episode.versions or (None, None)
    return [
        *(episode.id, question, episode.phase, episode.iteration, group, one.member, one.status.value, one.correct),
        *(one.reward, advantage, one.answer, one.reason, one.explanation, one.turns, episode.calls),
        *(
            episode.failed_calls,
            episode.use.prompt if episode.use else None,
            one.tokens,
            one.seconds,
            episode.retries,
            episode.recoveries,
        ),
        *(low, high),
    ]


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def _step(record: Mapping[str, Any]) -> int | None:
    """Returns the step of a line of metrics: its iteration, or its update in a supervised training."""
    value = record.get("iteration", record.get("step"))
    return value if isinstance(value, int) else None


def _seconds_between(first: str, last: str) -> float | None:
    try:
        return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()
    except (ValueError, TypeError):
        return None
