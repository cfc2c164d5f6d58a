"""Runs on disk as Python objects: a run, its episodes and its metrics. Files are read only when they are needed."""

from __future__ import annotations

import importlib
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from finqa.explained_errors import explained
from finqa_cli.documents import parse_json
from finqa_cli.errors import DataError, FinqaError, MissingDependencyError, UsageError
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.recorded_episodes import find_episode, select_episodes
from finqa_cli.runs.run_folder import read_run, read_settings
from finqa_cli.runs.run_summary import RunSummary, locate_run, summarize_run
from finqa_cli.runs.trajectory_records import exchange, recorded_trajectory
from finqa_cli.statistics import MALFORMED, read_outcome
from finqa_cli.types import Message, Turn
from finqa_cli.types.token_use import recorded_use

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

_LOG = "trajectories.jsonl"

_RESUMED_BY = {"eval": "evaluate", "train": "train", "sample": "sample"}
"""Command of a run -> function of `finqa.workflows` that resumes it."""


def load_run(path: str | Path) -> Run:
    """Return a run on disk, also while it runs.

    Args:
        path: Folder of the run, or its name below ./runs.

    Raises:
        DataError: There is no run there.
    """
    with explained():
        folder = locate_run(Path(path))
        read_run(folder)
    return Run(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One attempt at a question, as it is recorded.

    Attributes:
        number: Position in the run, from 1, in the order in which episodes ended; 0 in a callback.
        id: Its id in the run.
        question: The question as the policy read it.
        answer: The submitted or stated answer; empty if there is none.
        truth: The right answer, if the environment provides it; else empty.
        correct: The verdict; None for a fault, which is not graded.
        reward: Total reward; None for a fault.
        components: Named parts of the reward.
        explanation: The grader's reason, or the fault's.
        status: Why it ended, such as `completed` or `sandbox_error`.
        messages: The whole conversation: the prompt, then the turns of the policy and the replies.
        turns: Turns of the policy with tool calls and observations.
        tokens: Sampled tokens; None if they are unknown.
        usage: Tokens and cost as a mapping; None if they are unknown.
        seconds: Wall time of the attempt.
        record: The whole record, as in trajectories.jsonl.
    """

    number: int
    id: str
    question: str
    answer: str
    truth: str
    correct: bool | None
    reward: float | None
    components: Mapping[str, float] = field(repr=False)
    explanation: str = field(repr=False)
    status: str
    messages: tuple[Message, ...] = field(repr=False)
    turns: tuple[Turn, ...] = field(repr=False)
    tokens: int | None = field(repr=False)
    usage: Mapping[str, Any] | None = field(repr=False)
    seconds: float = field(repr=False)
    record: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of_record(cls, record: Mapping[str, Any], *, number: int = 0) -> Episode:
        """Return the episode of a record.

        Raises:
            KeyError, TypeError, ValueError, AttributeError, OverflowError: It is not the record of an episode.
        """
        outcome, trajectory = read_outcome(record), recorded_trajectory(record)
        exchanged = [message for turn in record["turns"] for message in exchange(turn)]
        return cls(
            number=number,
            id=trajectory.id,
            question=outcome.prompt,
            answer=outcome.answer,
            truth=str(record.get("truth", "")),
            correct=outcome.correct,
            reward=outcome.reward,
            components=outcome.components,
            explanation=outcome.explanation,
            status=outcome.status.value,
            messages=(*trajectory.messages, *exchanged),
            turns=tuple(trajectory.turns),
            tokens=outcome.tokens,
            usage=None if (use := recorded_use(record)) is None else use.to_dict(),
            seconds=outcome.seconds,
            record=record,
        )

    def row(self) -> dict[str, Any]:
        """Return the episode as a row of a table."""
        task = self.record["task"]
        return {
            "number": self.number,
            "id": self.id,
            **{name: self.record[name] for name in ("phase", "iteration") if name in self.record},
            "task": task["id"],
            **{name: task[name] for name in ("split", "cluster", "kind")},
            "question": self.question,
            "answer": self.answer,
            "truth": self.truth,
            "correct": self.correct,
            "reward": self.reward,
            "status": self.status,
            "explanation": self.explanation,
            "turns": len(self.turns),
            "tokens": self.tokens,
            "cost_usd": None if self.usage is None else self.usage["cost_usd"],
            "seconds": self.seconds,
        }

    def transcript(self) -> str:
        """Return the episode as `finqa show RUN EPISODE` shows it, without control characters."""
        from finqa_cli.commands.shared.episode_transcript import opening_text, truth_lines, turn_text, verdict_text

        trajectory = recorded_trajectory(self.record)
        turns = (turn_text(place, turn) for place, turn in enumerate(self.turns, start=1))
        parts = [opening_text(trajectory.task), *turns, verdict_text(trajectory), *truth_lines(self.record)]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        from finqa.html_views import episode_html

        reward = "" if self.reward is None else f"{self.reward:g}"
        facts = {
            "question": self.question,
            "verdict": self.correct,
            "answer": self.answer,
            "right answer": self.truth,
            "reward": f"{reward} {self.explanation}".strip(),
            "status": self.status,
        }
        return episode_html(self.id, facts, self.turns)


class Episodes(Sequence[Episode]):
    """The episodes of a run in the order in which they ended; each is read when it is accessed.

    An index is a position from 0; `["eval/..."]` is an id or its beginning, as in `finqa show`.
    """

    def __init__(self, run: Path, numbers: Sequence[int] | None = None) -> None:
        """Select the episodes with these numbers, from 1; None: all episodes of the run, also those recorded later."""
        self._run = run
        self._numbers = numbers
        self._offsets: list[int] = []

    def __len__(self) -> int:
        return len(self._starts() if self._numbers is None else self._numbers)

    @overload
    def __getitem__(self, index: int | str) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> Episodes: ...
    def __getitem__(self, index: int | str | slice) -> Episode | Episodes:
        """Return an episode by its position or id, or several by a slice.

        Raises:
            IndexError: There is no such position.
            DataError: There is no such id, or a record is malformed.
            UsageError: The id is a number, or several ids begin with it.
        """
        if isinstance(index, str):
            return self._named(index)
        if isinstance(index, slice):
            return Episodes(self._run, self._all_numbers()[index])
        return self._read(self._all_numbers()[index])

    def __iter__(self) -> Iterator[Episode]:
        return (self._read(number) for number in self._all_numbers())

    def __repr__(self) -> str:
        return f"<{len(self)} episodes of {self._run}>"

    def filter(self, *, failed: bool = False, search: str = "") -> Episodes:
        """Return some of the episodes, as `finqa show --failed --search TEXT` does.

        Args:
            failed: Only episodes that are wrong or ended in a fault.
            search: Only episodes whose record contains this text, ignoring case.

        Raises:
            DataError: A record is malformed.
        """
        kept = set(self._all_numbers())
        found = (number for number, _, _ in select_episodes(self._run, failed=failed, search=search))
        return Episodes(self._run, [number for number in found if number in kept])

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with a row for each episode.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return _pandas().DataFrame([each.row() for each in self])

    def _all_numbers(self) -> Sequence[int]:
        return range(1, len(self._starts()) + 1) if self._numbers is None else self._numbers

    def _named(self, reference: str) -> Episode:
        if reference.isdecimal():
            raise UsageError(
                f"{reference!r} is not the id of an episode.",
                remedy=f"give the place as a number: episodes[{reference}]",
            )
        number, record = find_episode(self._run, reference)
        return self._episode(number, record)

    def _read(self, number: int) -> Episode:
        file = self._run / _LOG
        with file.open("rb") as source:
            source.seek(self._starts()[number - 1])
            line = source.readline()
        try:
            record = parse_json(line)
        except ValueError as error:
            reason = f"{file}, line {number}: not valid JSON ({error})."
            raise DataError(reason, remedy=f"correct or remove that line of {file}") from error
        return self._episode(number, record)

    def _episode(self, number: int, record: Mapping[str, Any]) -> Episode:
        try:
            return Episode.of_record(record, number=number)
        except MALFORMED as error:
            file = self._run / _LOG
            reason = f"{file}, line {number}: not the record of an episode ({error!r})."
            raise DataError(reason, remedy=f"correct or remove that line of {file}") from error

    def _starts(self) -> Sequence[int]:
        """Return the position of each complete line. Only lines appended since the last call are searched."""
        file = self._run / _LOG
        size = file.stat().st_size if file.is_file() else 0
        if not self._offsets or size < self._offsets[-1]:
            self._offsets = [0]
        if size > self._offsets[-1]:
            with file.open("rb") as source:
                source.seek(position := self._offsets[-1])
                for line in source:
                    if line.endswith(b"\n"):
                        position += len(line)
                        self._offsets.append(position)
        return self._offsets[:-1]


class Records(Sequence[dict[str, Any]]):
    """Records of metrics, in the order in which they were written."""

    def __init__(self, records: Sequence[dict[str, Any]]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Records:
        if isinstance(index, slice):
            return Records(self._records[index])
        return self._records[index]

    def __repr__(self) -> str:
        kinds = Counter(str(each["kind"]) for each in self if "kind" in each)
        shown = f": {', '.join(f'{count} {kind}' for kind, count in kinds.items())}" if kinds else ""
        return f"<{len(self)} records{shown}>"

    def where(self, **fields: Any) -> Records:
        """Return the records that have these values, such as `where(kind="train")`."""
        return Records([each for each in self if all(each.get(name) == value for name, value in fields.items())])

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with a row for each record; nested fields are columns such as `measures.share`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return _pandas().json_normalize(list(self._records))


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """A run on disk.

    Attributes:
        path: Its folder.
    """

    path: Path

    @property
    def summary(self) -> RunSummary:
        """Its summary, as `finqa ls` shows it: command, status, progress, score, times, size."""
        return summarize_run(self.path)

    @property
    def status(self) -> str:
        """Its status, such as `running`, `completed`, `interrupted`, `failed` or `crashed`; see docs/runs.md."""
        return self.summary.status

    @property
    def command(self) -> str:
        """The command that wrote it, as in `finqa COMMAND`."""
        return self.summary.command

    @property
    def settings(self) -> dict[str, Any]:
        """Its resolved settings by section, secrets masked.

        Raises:
            DataError: settings.json is missing or damaged.
        """
        return read_settings(self.path)

    @property
    def metrics(self) -> Records:
        """The records of metrics.jsonl; an evaluation and samples have one record, that of report.json.

        Raises:
            DataError: A record is damaged.
        """
        file = self.path / "metrics.jsonl"
        records = list(read_jsonl(file)) if file.is_file() else []
        report = read_document(self.path / "report.json")
        return Records(records or ([report] if report else []))

    @property
    def episodes(self) -> Episodes:
        """Its episodes."""
        return Episodes(self.path)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with a row for each episode: `episodes.to_pandas()`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return self.episodes.to_pandas()

    def report(
        self,
        out: str | Path | None = None,
        *,
        beside: str | Path | Run | None = None,
        control: str | Path | Run | None = None,
    ) -> Path:
        """Write `finqa report`, one HTML file, and return its path.

        Args:
            out: The file; None: report.html in the folder of the run.
            beside: Another run to compare with, question by question.
            control: The control of this run: the same training run on shuffled rewards.

        Raises:
            DataError: The run has no records, or one is damaged.
            UsageError: Both `beside` and `control` are given, or the control or this run is not a training run.
            ConfigError: `out` is a file that is not a report, or `control` is not a control of this run.
        """
        from finqa_cli.publishing.report.run_report import write_report

        other, shuffled = (
            each.path if isinstance(each, Run) else None if each is None else load_run(each).path
            for each in (beside, control)
        )
        runs = [self.path, *([] if other is None else [other])]
        with explained():
            return write_report(runs, None if out is None else Path(out), control=shuffled).path

    def resume(self, **options: Any) -> Any:
        """Resume the run, as `finqa.evaluate(resume=...)`, `train` or `sample` do; returns their result.

        Args:
            options: Callbacks, and other arguments that these functions accept with `resume`.

        Raises:
            UsageError: It is a run of another command, or it is finished.
        """
        from finqa_cli.wiring.command_settings import RESUMABLE

        if (function := _RESUMED_BY.get(self.command)) is None:
            raise UsageError(
                f"{self.path} is a run of `finqa {self.command}`, which Python does not resume.",
                remedy=f"finqa {self.command} --resume {shlex.quote(str(self.path))}"
                if self.command in RESUMABLE
                else f"finqa show {shlex.quote(str(self.path))} shows what it recorded",
            )
        workflows = importlib.import_module("finqa.workflows")  # not at the top, because it imports this module
        return getattr(workflows, function)(resume=self.path, **options)

    def __repr__(self) -> str:
        summary = self.summary
        score = summary.score
        value = "" if score is None or score.graded == 0 else f", {score.name} {score.value:.3f}"
        return f"Run({str(self.path)!r}: {summary.command}, {summary.state}{value})"

    def _repr_html_(self) -> str:
        from finqa.html_views import MOST_ROWS, run_html

        try:
            count, first = len(self.episodes), list(self.episodes[:MOST_ROWS])
        except FinqaError as error:  # a damaged record must not hide the rest
            return run_html(self.summary, (), error.message)
        columns = ("number", "id", "question", "answer", "truth", "correct")
        return run_html(self.summary, [[getattr(each, name) for name in columns] for each in first], str(count))


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise MissingDependencyError(
            "to_pandas makes a table of pandas, which is not installed.", remedy="pip install pandas"
        ) from error
    return pandas
