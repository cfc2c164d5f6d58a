"""candidates.jsonl and scores.jsonl: one line per question in each, written once all its attempts are played."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError
from finqa_cli.runs.jsonl import GroupCommit, read_jsonl, rewind
from finqa_cli.statistics import MALFORMED, read_outcome
from finqa_cli.types import Status

CANDIDATES, SCORES, LOG = "candidates.jsonl", "scores.jsonl", "trajectories.jsonl"

Record = Mapping[str, Any]

_OF_CANDIDATES = ("id", "member", "seed", "turns")
_OF_SCORES = ("id", "status", "reward", "components", "explanation", "error", "seconds")


class CandidateWriter:
    """The two files of a run. Attempts of unfinished questions are in the log of the run only.

    On opening, what an interrupted run left is taken up: questions whose candidates are all written are settled, and
    attempts in the log need not be played again unless they ended in a fault.
    """

    def __init__(self, run: Path, wanted: int) -> None:
        """`wanted` is how many candidates each question gets.

        Raises:
            DataError: A line of an earlier run is damaged.
        """
        self._wanted = wanted
        self._open: dict[str, dict[int, Record]] = defaultdict(dict)
        self._settled = _settled(run, wanted)
        self._tries: dict[tuple[str, int], int] = defaultdict(int)
        for name in (CANDIDATES, SCORES):
            rewind(run / name, lambda record: record["id"] in self._settled)
        self._candidates, self._scores = GroupCommit(run / CANDIDATES), GroupCommit(run / SCORES)
        for record in read_log(run):
            question, member = place(record)
            self._tries[question, member] += 1
            if question not in self._settled and not _is_fault(record):
                for written in self.add(record):
                    written.result()

    def tries(self, question: str, member: int) -> int:
        """How often the attempt is in the log, whatever became of it."""
        return self._tries[question, member]

    def is_played(self, question: str, member: int) -> bool:
        """Whether the attempt has its grade."""
        return question in self._settled or member in self._open.get(question, {})

    def add(self, record: Record) -> Sequence[Future[None]]:
        """Takes an attempt as it stands in the log; writes its question when that was the last one.

        Returns:
            Each is done when a file has its line on disk, or with a StorageError; none when nothing is to be written.
        """
        question, member = place(record)
        attempts = self._open[question]
        attempts[member] = record
        if len(attempts) == self._wanted:
            graded = [attempts[number] for number in sorted(attempts) if not _is_fault(attempts[number])]
            del self._open[question]
            self._settled.add(question)
            if graded:
                return [
                    self._candidates.append(lambda: candidate_record(graded)),
                    self._scores.append(lambda: score_record(graded)),
                ]
        return ()

    def close(self) -> None:
        """Closes the files."""
        self._candidates.close()
        self._scores.close()

    def __enter__(self) -> CandidateWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def candidate_record(attempts: Sequence[Record]) -> dict[str, Any]:
    """What was asked, once, and what each attempt said: texts, token ids and log-probabilities by turn.

    Args:
        attempts: Graded attempts at one question, as records of trajectories.jsonl.
    """
    first = attempts[0]
    return {
        "id": first["task"]["id"],
        "task": first["task"],
        "prompt": {"messages": first["messages"], "tools": first["tools"]},
        "candidates": [
            {name: attempt[name] for name in _OF_CANDIDATES} | {"text": said(attempt)} for attempt in attempts
        ],
    }


def score_record(attempts: Sequence[Record]) -> dict[str, Any]:
    """How each attempt was judged, in the order of `candidate_record`."""
    scores = []
    for attempt in attempts:
        outcome = read_outcome(attempt)
        verdict = {"correct": outcome.correct, "well_formed": outcome.well_formed, "answer": outcome.answer}
        scores.append({name: attempt[name] for name in _OF_SCORES} | verdict)
    return {"id": attempts[0]["task"]["id"], "scores": scores}


def joined(candidates: Record, scores: Record) -> Iterator[dict[str, Any]]:
    """The attempts that a line of each file describes, as records of trajectories.jsonl have them.

    Raises:
        ValueError: They are not of the same attempts.
    """
    prompt, verdicts = candidates["prompt"], {score["id"]: score for score in scores["scores"]}
    if candidates["id"] != scores["id"] or {each["id"] for each in candidates["candidates"]} != set(verdicts):
        raise ValueError(f"candidates of {candidates['id']!r} and scores of {scores['id']!r} are not of one kind")
    for candidate in candidates["candidates"]:
        shared = {"task": candidates["task"], "messages": prompt["messages"], "tools": prompt["tools"]}
        yield {**shared, **candidate, **verdicts[candidate["id"]]}


def read_log(run: Path) -> Iterator[dict[str, Any]]:
    """The attempts in the log of a run; none when there is no log yet.

    Raises:
        DataError: A line is damaged or no attempt.
    """
    path = run / LOG
    if not path.exists():
        return
    for row, record in enumerate(read_jsonl(path), start=1):
        try:
            place(record)
            Status(record["status"])
        except MALFORMED as error:
            raise DataError(f"{path}, row {row}: not a trajectory record ({error!r}).") from error
        yield record


def said(attempt: Record) -> str:
    """All that the policy said in an attempt, turn after turn."""
    return "\n".join(str(turn["text"]) for turn in attempt["turns"])


def place(record: Record) -> tuple[str, int]:
    """Question and member of an attempt."""
    return str(record["task"]["id"]), int(record["member"])


def _is_fault(record: Record) -> bool:
    return Status(record["status"]).is_fault


def _settled(run: Path, wanted: int) -> set[str]:
    """Questions with all their candidates in both files."""
    full: list[set[str]] = []
    for name, part in ((CANDIDATES, "candidates"), (SCORES, "scores")):
        records = read_jsonl(run / name) if (run / name).exists() else ()
        full.append({str(record["id"]) for record in records if len(record[part]) == wanted})
    return full[0] & full[1]
