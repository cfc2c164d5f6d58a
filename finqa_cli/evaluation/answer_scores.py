"""Scores answers in files: rows, candidates of a prompt, or the trajectories of a run."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.data.data_problems import Problem, ProblemError, as_data_error
from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, DataError, EnvironmentFault, FinqaError, StorageError
from finqa_cli.evaluation.answer_rows import Answered, Truths, read_answers, read_trajectories, read_truths
from finqa_cli.evaluation.reward_tests import wants_json, write_text
from finqa_cli.extend import registry
from finqa_cli.grading.answers import parse_reply
from finqa_cli.runs.run_folder import read_run, read_settings
from finqa_cli.settings import Settings, from_public_dict
from finqa_cli.types import Rewards, Task

SCORES = "scores.jsonl"
TRAJECTORIES = "trajectories.jsonl"
_GIVE_TRUTH = "--truth FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Result of scoring a file.

    Attributes:
        path: Path of scores.jsonl.
        rows: Number of rows that were scored.
        skipped: Malformed rows that were left out.
        solutions: Number of answers that were scored; more than rows if rows contain candidates.
        parse_rate: Share of answers in the JSON form; None if the reward does not read JSON.
        mean: Mean reward.
        least: Smallest reward.
        most: Largest reward.
        components: Mean of each named part, over the answers that have it.
    """

    path: Path
    rows: int
    skipped: tuple[Problem, ...]
    solutions: int
    parse_rate: float | None
    mean: float
    least: float
    most: float
    components: Mapping[str, float]


def score(
    reward: Reward,
    source: Path,
    settings: Settings,
    *,
    truth: Path | None,
    out: Path,
    overwrite: bool,
    skip_bad: bool,
    most: int | None = None,
) -> Scores:
    """Scores every answer and writes scores.jsonl.

    Args:
        reward: The reward that scores.
        source: A file of rows or candidates, or a run folder.
        settings: Settings that the reward was made from; they also name the home of snapshots, for truths of a run.
        truth: A file of truths by id, for rows without their own.
        out: Folder of scores.jsonl.
        overwrite: Overwrite an existing scores.jsonl.
        skip_bad: Leave malformed rows out.
        most: Number of rows to score, from the first; None: all.

    Raises:
        ConfigError: The reward reads JSON replies, and the run submitted plain answers through a tool.
        DataError: The source is missing, a row is malformed, or no truth is known.
        StorageError: scores.jsonl exists already, or writing failed.
        FinqaError: The reward failed.
    """
    path = out / SCORES
    if path.resolve() == source.resolve():
        raise StorageError(f"{source} cannot be the output file of its own scores.", remedy="--out DIR")
    if path.exists() and not overwrite:
        raise StorageError(f"There is a {path} already.", remedy="--out DIR, or --overwrite")
    reads_json = wants_json(reward, settings)
    if reads_json and source.is_dir():
        _require_json_replies(source)
    totals: list[tuple[Answered, list[Rewards], float]] = []
    problems: list[Problem] = []
    for item in itertools.islice(_answers(source, settings, truth), most):
        if isinstance(item, Problem):
            problems.append(item)
        elif skip_bad or not problems:  # else nothing is written, and the loop only collects further problems
            parsed = [parse_reply(solution).ok for solution in item.solutions] if reads_json else []
            totals.append((item, _score(reward, source, item), sum(parsed) / len(parsed) if parsed else 0.0))
    if problems and not skip_bad:
        raise as_data_error(problems, remedy="correct them, or --skip-bad, which skips them")
    if not totals:
        raise DataError(f"{source} has no row that can be scored.")
    lines = [_record(*one, reads_json=reads_json) for one in totals]
    write_text(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))
    return _summary(path, totals, problems, reads_json)


def _answers(source: Path, settings: Settings, truth: Path | None) -> Iterator[Answered | Problem]:
    try:
        known: Truths = read_truths(truth) if truth else {}
        if source.is_dir():
            known = known or _truths_of_run(source, settings)
            yield from read_trajectories(source / TRAJECTORIES, known)
        else:
            yield from read_answers(source, known)
    except ProblemError as error:
        raise as_data_error([error.problem], remedy="finqa rewards score FILE, or the folder of a run") from error


def _require_json_replies(run: Path) -> None:
    """Raises ConfigError for a run that submitted its answers through a tool: the reward could read none of them."""
    played = from_public_dict(read_settings(run))
    if not _is_snapshotless(played):
        raise ConfigError(
            f"{run} is of the {played.environment.name} environment, which submits plain answers, but "
            "the reward requires JSON.",
            remedy="--set reward.options.format=plain",
        )


def _is_snapshotless(played: Settings) -> bool:
    return registry().find("environment", played.environment.name).snapshotless


def _truths_of_run(run: Path, settings: Settings) -> Truths:
    """Returns the truths of the snapshot that a run was played on.

    Raises:
        DataError: The environment has no snapshot, or the name of the snapshot has other data now.
    """
    facts, played = read_run(run), from_public_dict(read_settings(run))
    if _is_snapshotless(played):
        raise DataError(f"The truths of {run} are in no snapshot.", remedy=_GIVE_TRUTH)
    snapshot = LocalSnapshots(settings.data.home).get(played.data.snapshot)
    digest = facts.get("snapshot digest") or _digest_of_report(run)
    if digest != snapshot.digest:
        was = f"is of {digest[:19]}" if digest else "does not record its data"
        raise DataError(
            f"{run} {was}, and snapshot {snapshot.name!r} is now {snapshot.digest[:19]}.", remedy=_GIVE_TRUTH
        )
    return read_truths(snapshot.path / "truth.jsonl")


def _digest_of_report(run: Path) -> str:
    try:
        return str(parse_json((run / "report.json").read_text(encoding="utf-8"))["data"]["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _score(reward: Reward, source: Path, item: Answered) -> list[Rewards]:
    truth = item.truth
    question = str(item.extra_info.get("question") or truth.question)
    task = Task(id=item.id, prompt=question, split="", cluster="", kind=str(item.extra_info.get("question_type", "")))
    try:
        return [
            reward.score(
                RewardRequest(
                    task=task,
                    solution=solution,
                    truth=truth.answer,
                    program=truth.program,
                    table=truth.table,
                    data_source=item.data_source,
                    extra_info=item.extra_info,
                )
            )
            for solution in item.solutions
        ]
    except EnvironmentFault as error:
        # not a fault of an episode: a retry does not help, the user must fix the reward
        raise FinqaError(f"{source}, row {item.row}: {error.message}", remedy=error.remedy) from error


def _record(item: Answered, rewards: Sequence[Rewards], parse_rate: float, *, reads_json: bool) -> dict[str, Any]:
    totals = [one.total for one in rewards]
    if item.is_group:
        return {
            "id": item.id,
            **({"parse_rate": parse_rate} if reads_json else {}),
            "mean_reward": sum(totals) / len(totals),
            "max_reward": max(totals),
            "min_reward": min(totals),
            "candidates": [_verdict(one) for one in rewards],
        }
    return {"id": item.id, **_verdict(rewards[0]), **({"parse_ok": bool(parse_rate)} if reads_json else {})}


def _verdict(rewards: Rewards) -> dict[str, Any]:
    return {"reward": rewards.total, "components": dict(rewards.components), "explanation": rewards.explanation}


def _summary(
    path: Path,
    totals: Sequence[tuple[Answered, Sequence[Rewards], float]],
    problems: Sequence[Problem],
    reads_json: bool,
) -> Scores:
    every = [one for _, rewards, _ in totals for one in rewards]
    values = [one.total for one in every]
    parts: dict[str, list[float]] = defaultdict(list)
    for one in every:
        for name, value in one.components.items():
            parts[name].append(value)
    parsed = sum(share * len(rewards) for _, rewards, share in totals)
    return Scores(
        path=path,
        rows=len(totals),
        skipped=tuple(problems),
        solutions=len(values),
        parse_rate=parsed / len(values) if reads_json else None,
        mean=sum(values) / len(values),
        least=min(values),
        most=max(values),
        components={name: sum(found) / len(found) for name, found in parts.items()},
    )


def document(scores: Scores) -> dict[str, Any]:
    """Returns the `--json` form."""
    return {
        "scores": str(scores.path),
        "rows": scores.rows,
        "skipped": [asdict(problem) for problem in scores.skipped],
        "solutions": scores.solutions,
        "parse_rate": scores.parse_rate,
        "mean_reward": scores.mean,
        "min_reward": scores.least,
        "max_reward": scores.most,
        "components": dict(scores.components),
    }
