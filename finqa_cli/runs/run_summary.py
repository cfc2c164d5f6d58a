"""Summary of a run: status, progress, score, times, size; from small files and the ends of large ones.

`summarize_run` does not raise for a damaged run: the summary describes what is wrong with it.
"""

from __future__ import annotations

import difflib
import json
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from finqa_cli.errors import DataError
from finqa_cli.processes import host_name
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.jsonl import count_lines, read_backwards
from finqa_cli.runs.run_folder import MANIFEST, WORKED, read_run
from finqa_cli.types.token_use import TokenUse

DAMAGED, UNKNOWN, RUNNING, COMPLETED = "damaged", "unknown", "running", "completed"
PIPELINE_EVALUATION = "10_eval"
"""Folder of the pipeline step that evaluates the trained policy."""

LOGGED = ("metrics.jsonl", "events.jsonl", "trajectories.jsonl")
"""Files that a run appends to while it runs."""

PLAYED = ("eval", "sample")
"""Commands whose progress is counted in episodes."""

_EVALUATIONS = ("eval", "validation")
_DEEPEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a run.

    Attributes:
        name: `accuracy`, or `reward` if nothing was evaluated on held-out questions.
        value: The mean.
        low: Lower end of its 95 % interval; None if there is no interval.
        high: Upper end of its 95 % interval; None if there is no interval.
        graded: Number of graded episodes.
        iteration: Iteration of the policy that was evaluated; None for a run without training.
        questions: Number of questions of the graded episodes; None if it is not recorded.
        clusters: Number of clusters of these questions, such as companies; None if it is not recorded.
    """

    name: Literal["accuracy", "reward"]
    value: float
    low: float | None = None
    high: float | None = None
    graded: int | None = None
    iteration: int | None = None
    questions: int | None = None
    clusters: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run.

    Attributes:
        unit: The unit that is counted.
        done: Number of finished units.
        total: Planned number of units; None if it is not recorded.
        step: Name of the last started step, for a pipeline or an experiment.
    """

    unit: Literal["iteration", "episode", "step"]
    done: int
    total: int | None = None
    step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Summary of a run.

    Attributes:
        path: Folder of the run.
        command: Command of the run, as in `finqa COMMAND`; empty if it cannot be read.
        status: Status in run.json, but `crashed` if the process ended without a final status, `unknown` if it is on
            another machine, and `damaged` if files cannot be read.
        reason: Why the status is `unknown` or `damaged`; empty otherwise.
        progress: Its progress; None if nothing is counted.
        score: Score of its last evaluation; None if there is none.
        created: Unix time of its start in seconds; None if it cannot be read.
        seconds: Wall-clock seconds of work so far, without the time between an interruption and `--resume`; None if it
            is not known.
        size: Bytes on disk, with its nested runs.
        nested: The steps of a pipeline or an experiment, each a run.
        use: Tokens and cost of a finished evaluation; None if they are unknown, and for other runs.
        policy: Policy or model that plays or is trained; empty if it is not recorded.
        data: Name of the data; empty if it is not recorded.
        environment: Name of the environment; empty if it is not recorded.
        grader: What grades its answers; empty if it is not recorded.
        tags: Tags that the user gave it.
    """

    path: Path
    command: str
    status: str
    reason: str = ""
    progress: Progress | None = None
    score: Score | None = None
    created: float | None = None
    seconds: float | None = None
    size: int = 0
    nested: tuple[RunSummary, ...] = ()
    use: TokenUse | None = None
    policy: str = ""
    data: str = ""
    environment: str = ""
    grader: str = ""
    tags: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """Text of status and progress, such as `crashed at iteration 7 of 24`."""
        progress = self.progress
        if progress is None or self.status in (COMPLETED, DAMAGED):
            return self.status
        joint = "," if self.status == RUNNING else " at"
        of = f" of {progress.total}" if progress.total is not None else ""
        if progress.unit == "step":
            return f"{self.status}{joint} step {progress.step}" if progress.step else self.status
        if progress.unit == "episode":
            after = "," if self.status == RUNNING else " after"
            return f"{self.status}{after} {progress.done}{of} episodes"
        return f"{self.status}{joint} iteration {progress.done}{of}"


def locate_run(reference: Path) -> Path:
    """Return the folder of a run: the path itself, or the run with this name below ./runs.

    Raises:
        DataError: Neither is a run.
    """
    for place in (reference, Path("runs") / reference):
        if place.is_dir() and is_run(place):
            return place
    where = "" if reference.is_absolute() else f" in {Path.cwd()}"
    folders = [folder for folder in (reference.parent, Path("runs") / reference.parent) if folder.is_dir()]
    names = {path.name: str(path) for folder in folders for path in sorted(folder.iterdir()) if is_run(path)}
    near = difflib.get_close_matches(reference.name, names, n=1)
    hint = f" Did you mean {names[near[0]]!r}?" if near else ""
    raise DataError(f"There is no run {reference}{where}.{hint}", remedy="finqa ls")


def summarize_runs(folder: Path) -> tuple[list[RunSummary], list[Path]]:
    """Return the summaries of the runs in a folder, newest first, and its folders that are not runs.

    If the folder itself is a run, that is the only one.

    Raises:
        OSError: The folder cannot be read.
    """
    runs, foreign = find_runs(folder)
    found = [summarize_run(path) for path in runs]
    return sorted(found, key=lambda each: each.created or 0.0, reverse=True), foreign


def find_runs(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders in a folder that are runs, and those that are not, without reading the runs.

    If the folder itself is a run, that is the only one.

    Raises:
        OSError: The folder cannot be read.
    """
    if is_run(folder):
        return [folder], []
    folders = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and path.is_dir()]
    runs = [path for path in folders if is_run(path)]
    return runs, [path for path in folders if path not in runs]


def summarize_run(path: Path, *, depth: int = 0, episodes: int | None = None) -> RunSummary:
    """Return the summary of one run, with the summaries of its steps down to three levels.

    Args:
        path: Folder of the run.
        depth: Number of runs in which it is nested.
        episodes: Number of its recorded episodes; None: they are counted if the progress needs them.
    """
    size = disk_use(path)
    try:
        facts = read_run(path) if (path / "run.json").exists() else _of_manifest(path)
    except DataError as error:
        return RunSummary(path=path, command="", status=DAMAGED, reason=error.message, size=size)
    except OSError as error:
        reason = f"{path / 'run.json'} cannot be read: {error.strerror or error}."
        return RunSummary(path=path, command="", status=DAMAGED, reason=reason, size=size)
    command, status = facts.get("command"), facts.get("status")
    if not isinstance(command, str) or not isinstance(status, str):
        reason = f"{path / 'run.json'} has no command or no status."
        return RunSummary(path=path, command="", status=DAMAGED, reason=reason, size=size)
    steps = _steps(facts)
    reason = ""
    if status == RUNNING and facts.get("host", host_name()) != host_name():
        quiet = time.time() - last_written(path)
        status, reason = UNKNOWN, f"its process is on {facts['host']}; last record {quiet:.0f} s ago"
    score = _read_score(path, command, steps)
    report = read_document(path / "report.json") if command in PLAYED else {}
    return RunSummary(
        path=path,
        command=command,
        status=status,
        reason=reason,
        progress=_read_progress(path, command, facts, steps, episodes),
        score=score,
        created=_time_of(facts.get("created")),
        seconds=_working_time(path, facts, status),
        size=size,
        nested=tuple(_nested(path, steps, depth)),
        use=TokenUse.from_dict(report.get("usage")) if command in PLAYED else None,
        **_played(path, facts, report),
    )


def _played(path: Path, facts: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run plays, as far as its files tell: policy, data, environment, grader and tags."""
    settings = read_document(path / "settings.json")

    def of(section: str, field: str) -> Any:
        return found.get(field) if isinstance(found := settings.get(section), Mapping) else None

    options, tags, data = of("environment", "options"), of("run", "tags"), report.get("data")
    environment = str(of("environment", "name") or "")
    named = data.get("name") if isinstance(data, Mapping) else None
    source = of("data", "path") or (of("data", "snapshot") if environment == "finqa" else None)
    target = facts.get("target") or of("model", "name")
    several = facts.get("targets")
    if isinstance(several, Mapping):
        target = ", ".join(map(str, several.values()))
    return {
        "policy": str(target or ""),
        "data": str(named or (Path(str(source)).name if source else environment)),
        "environment": environment,
        "grader": str(options.get("grader") or "") if isinstance(options, Mapping) else "",
        "tags": tuple(map(str, tags)) if isinstance(tags, list) else (),
    }


def disk_use(path: Path) -> int:
    """Return the bytes of a file or folder on disk; a file with several hard links counts once."""
    seen: set[tuple[int, int]] = set()
    total, pending = 0, [path]
    while pending:
        entry = pending.pop()
        try:
            facts = entry.lstat()
            if stat.S_ISDIR(facts.st_mode):
                pending += entry.iterdir()
        except OSError:  # deleted meanwhile, or not readable
            continue
        if (place := (facts.st_dev, facts.st_ino)) not in seen:
            seen.add(place)
            total += facts.st_blocks * 512
    return total


def last_written(path: Path) -> float:
    """Return the Unix time in seconds at which a run last wrote to one of its files; 0.0 if there is none."""
    times = [0.0]
    for name in (*LOGGED, "run.json"):
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)


def is_run(path: Path) -> bool:
    """Return whether a folder is a run: it has a run.json, or a manifest that names its command."""
    return (path / "run.json").exists() or isinstance(read_document(path / MANIFEST).get("command"), str)


def _of_manifest(path: Path) -> dict[str, Any]:
    """Return the facts of a run without run.json, whose command writes its manifest last, such as `finqa prefs`."""
    manifest = read_document(path / MANIFEST)
    return {"command": manifest.get("command"), "created": manifest.get("created"), "status": COMPLETED}


def _steps(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    steps = facts.get("steps")
    if not isinstance(steps, Mapping):
        return {}
    return {str(name): record for name, record in steps.items() if isinstance(record, Mapping)}


def _nested(path: Path, steps: Mapping[str, Mapping[str, Any]], depth: int) -> Iterator[RunSummary]:
    for name in steps if depth < _DEEPEST else ():
        if not Path(name).is_absolute() and ".." not in Path(name).parts and is_run(path / name):
            yield summarize_run(path / name, depth=depth + 1)


def _read_progress(
    path: Path,
    command: str,
    facts: Mapping[str, Any],
    steps: Mapping[str, Mapping[str, Any]],
    episodes: int | None,
) -> Progress | None:
    if "steps" in facts:
        done = sum(record.get("status") == COMPLETED for record in steps.values())
        return Progress(unit="step", done=done, step=next(reversed(list(steps)), ""))
    if not (path / "metrics.jsonl").exists():
        return None
    if command in PLAYED:
        total = _count(facts.get("episodes"))
        if (done := total if facts.get("status") == COMPLETED else episodes) is None:
            done = count_lines(path / "trajectories.jsonl")
        return Progress(unit="episode", done=done, total=total)
    records = (record for record in read_backwards(path / "metrics.jsonl") if record.get("kind") not in _EVALUATIONS)
    done = _count(next(records, {}).get("iteration", 0))
    planned = read_document(path / "settings.json").get("train")
    total = planned.get("iterations") if command.startswith("train") and isinstance(planned, Mapping) else None
    return None if done is None else Progress(unit="iteration", done=done, total=_count(total))


def _read_score(path: Path, command: str, steps: Mapping[str, Mapping[str, Any]]) -> Score | None:
    """Return the score of the last evaluation of a run; for a pipeline, that of the policy that it trained."""
    try:
        if command == "pipeline":
            report = read_document(path / PIPELINE_EVALUATION / "report.json")
            return _score_of(report) if PIPELINE_EVALUATION in steps and report else None
        if command in PLAYED:
            return _score_of(read_document(path / "report.json"))
        trained: Mapping[str, Any] = {}
        for record in read_backwards(path / "metrics.jsonl"):
            trained = trained or (record if record.get("kind") in ("train", "rollout") else {})
            if record.get("kind") in _EVALUATIONS and record.get("accuracy") is not None:
                return _score_of(record, iteration=int(record["iteration"]))
        return _reward_of(trained) if "reward_mean" in trained else None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None  # written by another version, or by hand


def _score_of(report: Mapping[str, Any], iteration: int | None = None) -> Score | None:
    """Return the score in the report or the record of an evaluation; None if it has none."""
    value = report.get("accuracy")
    low, high = report.get("accuracy_interval") or (None, None)
    if isinstance(value, Mapping):  # the report of `finqa sample`, where each metric has its own interval
        low, high = value.get("interval") or (None, None)
        value = value.get("value")
    if value is None:
        return None
    questions = _count(report.get("questions"))
    graded = report.get("candidates")
    if graded is None:
        graded = report["episodes"] - report["faults"] if "episodes" in report else report["questions"]
    ends = [None if end is None else float(end) for end in (low, high)]
    return Score(
        name="accuracy",
        value=float(value),
        low=ends[0],
        high=ends[1],
        graded=int(graded),
        iteration=iteration,
        questions=questions,
        clusters=_count(report.get("clusters")),
    )


def _reward_of(record: Mapping[str, Any]) -> Score:
    graded = record["episodes"] - record["faults"]
    return Score(
        name="reward", value=float(record["reward_mean"]), graded=int(graded), iteration=int(record["iteration"])
    )


def _working_time(path: Path, facts: Mapping[str, Any], status: str) -> float | None:
    begun, ended = _time_of(facts.get("created")), _time_of(facts.get("finished"))
    if begun is None or ("finished" not in facts and "pid" not in facts):
        return None
    if status not in (RUNNING, UNKNOWN, "crashed") and isinstance(worked := facts.get(WORKED), (int, float)):
        return float(worked)
    now = time.time()
    if facts.get("resumed") and (sessions := _sessions(path, now if status == RUNNING else None)) is not None:
        return sessions
    if status == RUNNING:
        return max(now - begun, 0.0)  # the clock may have been set back
    if status not in (UNKNOWN, "crashed") and ended is not None:
        return max(ended - begun, 0.0)
    return max(last_written(path) - begun, 0.0)


def _sessions(path: Path, now: float | None) -> float | None:
    """Return the seconds of all sessions of a run, each from its start to its last event; `now` ends a running one."""
    total, start = 0.0, None
    before = b""
    try:
        with (path / "events.jsonl").open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                if b'"run_start"' in line:  # parse only these lines, because there are many others
                    total += _at(before) - start if start is not None else 0.0
                    start = _at(line)
                before = line
        return None if start is None else total + max(now or 0.0, _at(before)) - start
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _at(line: bytes) -> float:
    return float(json.loads(line)["time"])


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _time_of(text: object) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except ValueError:
        return None
