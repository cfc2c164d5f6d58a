"""Reads a run folder for a report: its facts, its metrics and an entry per attempt; details of attempts on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError
from finqa_cli.masking import masked
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_folder import MANIFEST, read_run, read_settings
from finqa_cli.runs.run_nodes import RunNodes, read_nodes
from finqa_cli.statistics import MALFORMED, Outcome, read_outcome
from finqa_cli.types.token_use import TokenUse, recorded_use

TRAJECTORIES = "trajectories.jsonl"
METRICS = "metrics.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One attempt as a row of the report.

    Attributes:
        line: Its line in trajectories.jsonl, counted from 1.
        id: Its id.
        phase: `train`, `eval` or `sample`.
        iteration: Step of the training; 0 before the first step and for runs that are not trainings.
        outcome: Its result.
        weight: `Rewards.weight`.
        retries: Number of earlier attempts at the same member that ended in a fault.
        recoveries: Number of times that it was continued in a new session.
        calls: Number of tool calls that could be read.
        failed_calls: Number of tool calls that the environment refused, and of turns in which no call could be read.
        use: Tokens and cost; None if they are unknown.
        versions: Lowest and highest policy version of its turns; None without turns.
    """

    line: int
    id: str
    phase: str
    iteration: int
    outcome: Outcome
    weight: float = 1.0
    retries: int = 0
    recoveries: int = 0
    calls: int = 0
    failed_calls: int = 0
    use: TokenUse | None = None
    versions: tuple[int, int] | None = None

    @property
    def group(self) -> str:
        """The id without the member, which all attempts at one question in one step share."""
        return self.id.rpartition("/")[0] or self.id

    @property
    def order(self) -> tuple[int, bool, str, int, str]:
        """Sort key, independent of when attempts ended: step, training before evaluation, group, member, id."""
        return self.iteration, self.phase != "train", self.group, self.outcome.member, self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """The records of a run that a report is made from.

    Attributes:
        path: The run folder.
        facts: run.json.
        settings: Resolved settings with secrets masked.
        manifest: manifest.json; empty if there is none.
        report: report.json of an evaluation; empty for other runs.
        metrics: Lines of metrics.jsonl.
        episodes: All attempts, sorted by `Episode.order`.
        nodes: Nodes of the cluster; none for a run on one machine.
    """

    path: Path
    facts: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[Mapping[str, Any], ...] = ()
    episodes: tuple[Episode, ...] = ()
    nodes: RunNodes = field(default_factory=RunNodes)


def read_records(path: Path) -> RunRecords:
    """Reads a run folder, also while the run continues.

    Raises:
        DataError: The path is not a run folder, there are no records yet, or a file is damaged; the message names file
            and line.
    """
    if not path.is_dir():
        raise DataError(f"The run folder {path} does not exist.", remedy="finqa ls")
    if not (path / "run.json").is_file():
        raise DataError(f"{path} is not a run folder: it has no run.json.", remedy="ls runs/*/run.json")
    facts = read_run(path)
    episodes = sorted(_read_episodes(path / TRAJECTORIES), key=lambda episode: episode.order)
    metrics = tuple(read_jsonl(path / METRICS)) if (path / METRICS).is_file() else ()
    if not episodes and not metrics:
        raise DataError(
            f"{path} has no episodes and no metrics to report.",
            remedy=f"wait for the first record of `finqa {facts.get('command', 'eval')}`, or choose another "
            "run: finqa ls",
        )
    return RunRecords(
        path=path,
        facts=facts,
        settings=masked(read_settings(path)),
        manifest=masked(read_document(path / MANIFEST)),
        report=read_document(path / "report.json"),
        metrics=metrics,
        episodes=tuple(episodes),
        nodes=read_nodes(path),
    )


def _read_episodes(file: Path) -> Iterator[Episode]:
    if not file.is_file():
        return
    for line, record in enumerate(read_jsonl(file), start=1):
        try:
            yield read_episode(record, line)
        except MALFORMED as error:
            raise DataError(
                f"{file}, line {line}: not a trajectory record ({error!r}).",
                remedy=f"correct or remove that line of {file}",
            ) from error


def read_episode(record: Mapping[str, Any], line: int) -> Episode:
    """Returns the row of one record.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, OverflowError: The mapping is not a record of an attempt.
    """
    turns = record["turns"]
    steps = [step for turn in turns for step in (turn, *turn.get("further_steps", ())) if step["tool_call"] is not None]
    refused = sum(bool(step["observation"] and step["observation"]["is_error"]) for step in steps)
    versions = [int(turn["policy_version"]) for turn in turns]
    return Episode(
        line=line,
        id=str(record["id"]),
        phase=str(record.get("phase") or str(record["id"]).partition("/")[0]),
        iteration=int(record.get("iteration", 0)),
        outcome=read_outcome(record),
        weight=float(record.get("weight", 1.0)),
        retries=int(record["retries"]),
        recoveries=int(record["recoveries"]),
        calls=len(steps),
        failed_calls=refused + sum(bool(turn["parse_error"]) for turn in turns),
        use=recorded_use(record),
        versions=(min(versions), max(versions)) if versions else None,
    )


def read_details(path: Path, lines: Mapping[int, int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the records on the given lines of trajectories.jsonl, in the order of the file.

    Args:
        path: The run folder.
        lines: Line -> number that is yielded with its record, such as that of its row in the report.
    """
    if not lines:
        return
    last = max(lines)
    for line, record in enumerate(read_jsonl(path / TRAJECTORIES), start=1):
        if line in lines:
            yield lines[line], record
        if line == last:
            return
