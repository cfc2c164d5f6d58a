"""`finqa eval A B C`: one evaluation for each policy, on the same questions, in one folder that can be resumed.

The folder has an evaluation for each policy, `comparison/`, and a run.json that lists the evaluations as its steps. The
folder of an evaluation that was not started has its settings already, so a resumed command needs no others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli import __version__
from finqa_cli.deletion import lock_folder, remove, unlock_folder
from finqa_cli.errors import (
    BudgetReachedError,
    ConfigError,
    DataError,
    FinqaError,
    InterruptedRun,
    ThresholdError,
    UsageError,
)
from finqa_cli.evaluation.compare.comparison import CompareResult, compare
from finqa_cli.evaluation.compare.comparison_report import write_comparison
from finqa_cli.evaluation.evaluate import EvalResult
from finqa_cli.evaluation.planned_evaluation import PlannedEvaluation, check_faults, plan_resumption
from finqa_cli.evaluation.unfinished_run import UNFINISHED, compare_settings
from finqa_cli.runs.durable_files import now, read_document, write_json
from finqa_cli.runs.links import LINKS, link_of, located
from finqa_cli.runs.run_folder import SETTINGS, is_over, process_facts, read_run
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.wiring.command_settings import RUNS, run_path, stored_settings

COMMAND = "eval-models"
"""The command in run.json of such a folder."""

COMPARISON = "comparison"
"""Folder of the comparison inside it."""

_TARGETS = "targets"
_LONGEST_LABEL = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralModels:
    """Evaluations of several policies.

    Attributes:
        path: Their folder.
        targets: Label, which is also the name of the folder of an evaluation -> policy or engine that plays.
        resumes: Whether the folder was started by an earlier command.
    """

    path: Path
    targets: Mapping[str, str]
    resumes: bool

    @property
    def resume_command(self) -> str:
        """The command that plays what is missing."""
        return f"finqa eval --resume {self.path}"

    def folder(self, label: str) -> Path:
        """Folder of one evaluation."""
        return self.path / label


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsResult:
    """Results of evaluations of several policies.

    Attributes:
        path: Their folder.
        played: Label -> result, for evaluations that were played by this command.
        faults: Label -> why an evaluation is not complete; empty if all are.
        comparison: The comparison; None if fewer than two evaluations could be compared.
        not_compared: Why there is no comparison; empty if there is one.
    """

    path: Path
    played: Mapping[str, EvalResult]
    faults: Mapping[str, FinqaError]
    comparison: CompareResult | None
    not_compared: str = ""


def is_several(run: Path) -> bool:
    """Whether a folder has evaluations of several policies."""
    return read_document(run / "run.json").get("command") == COMMAND


def plan_several(settings: Mapping[str, Settings], targets: Sequence[str], *, fresh: bool) -> SeveralModels:
    """Return the evaluations of several policies: those that the same command started and did not end, or new ones.

    Args:
        settings: Policy -> settings of its evaluation; `run.dir` is the folder for all of them.
        targets: The policies as they were typed.
        fresh: Start new evaluations, even if the same ones were started and did not end.

    Raises:
        UsageError: A policy is named twice.
        ConfigError: The folder of the settings has evaluations of other policies, or with other settings; or the
            policies would be asked different questions.
    """
    labels = _labels(targets)
    first = next(iter(settings.values()))
    _check_same_questions(settings)
    named = first.run.dir
    if named is not None and is_several(named) and not fresh:
        if differences := _differences(named, labels, settings):
            raise ConfigError(
                f"{named} has evaluations with other settings: {'; '.join(differences)}.",
                remedy=f"finqa eval --resume {named}, which uses its settings, or choose another --run-dir",
            )
        return SeveralModels(path=named, targets=labels, resumes=True)
    begun = None if fresh or named is not None else _find_begun(labels, settings)
    path = begun or run_path(first, "models_")
    return SeveralModels(path=path, targets=labels, resumes=begun is not None)


def plan_several_again(run: Path) -> SeveralModels:
    """Return the evaluations in a folder, to play what is missing.

    Raises:
        DataError: Its run.json is damaged.
    """
    targets = read_run(run).get(_TARGETS)
    if not isinstance(targets, Mapping) or not targets:
        raise DataError(f"{run} does not record which policies it evaluates.", remedy="finqa eval POLICY POLICY")
    return SeveralModels(
        path=run, targets={str(label): located(run, str(target)) for label, target in targets.items()}, resumes=True
    )


@contextmanager
def opened(plan: SeveralModels, settings: Mapping[str, Settings]) -> Iterator[SeveralModels]:
    """Lock the folder for this block; record the policies, and the settings of each evaluation.

    Args:
        plan: The evaluations.
        settings: Policy -> settings; empty for a folder whose settings are recorded.

    Raises:
        ConfigError: The folder is not empty, or another process uses it.
    """
    if not plan.resumes and plan.path.is_dir() and any(plan.path.iterdir()):
        raise ConfigError(f"{plan.path} is not empty.", remedy="choose another --run-dir")
    lock = lock_folder(plan.path)
    try:
        facts = read_run(plan.path) if plan.resumes else {}
        links = {name: link for target in plan.targets.values() for name, link in link_of(plan.path, target).items()}
        facts = {
            **{"schema_version": 1, "id": plan.path.name, "created": now(), "finqa": __version__, "steps": {}},
            **{_TARGETS: dict(plan.targets), LINKS: links, **facts},
            **{"command": COMMAND, "status": "running", **process_facts()},
        }
        for label, target in plan.targets.items() if settings else ():
            _record_settings(plan.folder(label), settings[target])
        write_json(plan.path / "run.json", facts)
        try:
            yield plan
        except InterruptedRun:
            _finish(plan, "interrupted")
            raise
        except BaseException:
            _finish(plan, "failed")
            raise
    finally:
        unlock_folder(lock)


def play_several(
    plan: SeveralModels,
    settings: Mapping[str, Settings],
    given: Mapping[str, Any],
    play: Callable[[PlannedEvaluation], EvalResult],
    say: Callable[[str], None],
) -> ModelsResult:
    """Play one evaluation after the other, and compare them. One that fails does not stop the others.

    Args:
        plan: The evaluations, in a folder that is open.
        settings: Policy -> settings; empty for a folder whose settings are recorded.
        given: Settings that the user gives to a resumed command; they cannot change results.
        play: Plays one evaluation.
        say: Receives a line about each evaluation.

    Raises:
        InterruptedRun: A signal stopped it.
    """
    played: dict[str, EvalResult] = {}
    faults: dict[str, FinqaError] = {}
    for number, (label, target) in enumerate(plan.targets.items(), start=1):
        folder = plan.folder(label)
        if (folder / "run.json").is_file() and is_over(read_run(folder)):
            say(f"{number} of {len(plan.targets)}: {target} is already evaluated")
            continue
        say(f"{number} of {len(plan.targets)}: {target}")
        _note(plan, label, "running")
        try:
            evaluation = _planned(folder, target, settings, given)
            played[label] = play(evaluation)
            check_faults(played[label], evaluation.settings)
        except InterruptedRun as error:
            _note(plan, label, "interrupted", error)
            if not isinstance(error, BudgetReachedError):
                error.remedy = plan.resume_command
                raise
            faults[label] = error
        except FinqaError as error:
            faults[label] = error
            _note(plan, label, "completed" if label in played else "failed", error)
        else:
            _note(plan, label, "completed")
    done = [label for label in plan.targets if label not in faults or label in played]
    comparison, reason = _compare(plan, done)
    _finish(plan, "completed" if len(done) == len(plan.targets) else "failed")
    return ModelsResult(path=plan.path, played=played, faults=faults, comparison=comparison, not_compared=reason)


def several_faults(plan: SeveralModels, result: ModelsResult) -> FinqaError:
    """Return the error for evaluations that are not complete: the first one itself if no evaluation is."""
    label, error = next(iter(result.faults.items()))
    if len(result.faults) == len(plan.targets) and not result.played:
        return error
    others = len(result.faults) - 1
    more = f" So {'is another one' if others == 1 else f'are {others} others'}." if others else ""
    return ThresholdError(
        f"The evaluation of {plan.targets[label]} is not complete: {error.message}{more}",
        remedy=f"{plan.resume_command}, which plays what is missing; {error.remedy}".rstrip("; "),
    )


def _planned(
    folder: Path, target: str, settings: Mapping[str, Settings], given: Mapping[str, Any]
) -> PlannedEvaluation:
    begun = (folder / "run.json").is_file()
    if begun and not settings:
        return plan_resumption(folder, given)
    own = settings[target] if settings else stored_settings(folder, "play", given)
    return PlannedEvaluation(settings=own, target=target, run=folder, resumes=begun)


def _compare(plan: SeveralModels, done: Sequence[str]) -> tuple[CompareResult | None, str]:
    """Compare the evaluations that have graded episodes; a comparison of an earlier command is replaced."""
    remove(plan.path / COMPARISON)
    graded = [
        label
        for label in done
        if (report := read_document(plan.folder(label) / "report.json")) and report["faults"] < report["episodes"]
    ]
    if len(graded) < 2:
        return None, f"{len(graded)} of {len(plan.targets)} policies could be evaluated, so there is no comparison"
    try:
        result = compare([f"{label}={plan.folder(label)}" for label in graded])
        write_comparison(result, plan.path / COMPARISON, plots=False)
    except (DataError, UsageError) as error:  # such as copies of one run: the evaluations stay
        return None, error.message
    return result, ""


def _labels(targets: Sequence[str]) -> dict[str, str]:
    """Return a label for each policy, which is the name of a folder: the last part of its name that is unique."""
    if len(set(targets)) < len(targets):
        twice = next(target for target in targets if targets.count(target) > 1)
        raise UsageError(f"{twice} is named twice.", remedy="name every policy once")
    labels: dict[str, str] = {}
    for target in targets:
        word = re.sub(r"[^\w.-]+", "-", target.rstrip("/").rpartition("/")[2]).strip(".-") or "policy"
        word = word[:_LONGEST_LABEL]
        others = [other for other in targets if other != target and other.rstrip("/").endswith(f"/{word}")]
        label = re.sub(r"[^\w.-]+", "-", target).strip(".-")[-_LONGEST_LABEL:] if others else word
        number = 2
        while label in (*labels, COMPARISON):
            label, number = f"{word}-{number}", number + 1
        labels[label] = target
    return labels


def _check_same_questions(settings: Mapping[str, Settings]) -> None:
    """Check that all policies are asked the same questions. A policy brings data and split of its training.

    Raises:
        ConfigError: They are not.
    """
    asked = {
        target: {
            "--environment": own.environment.name,
            "--snapshot": own.data.snapshot,
            "--data": own.data.path,
            "--split": own.data.eval_split,
        }
        for target, own in settings.items()
    }
    first, *others = asked
    for other in others:
        for flag, value in asked[first].items():
            if value != asked[other][flag]:
                raise ConfigError(
                    f"The policies would be asked different questions: {flag} is {value} for {first} and "
                    f"{asked[other][flag]} for {other}.",
                    remedy=f"the same command with {flag}",
                )


def _find_begun(targets: Mapping[str, str], settings: Mapping[str, Settings]) -> Path | None:
    files = sorted(RUNS.glob("*/run.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        if not is_several(file.parent) or read_run(file.parent).get("status") not in UNFINISHED:
            continue
        if not _differences(file.parent, targets, settings):
            return file.parent
    return None


def _differences(run: Path, targets: Mapping[str, str], settings: Mapping[str, Settings]) -> list[str]:
    known = read_run(run).get(_TARGETS)
    if known != dict(targets):
        shown = ", ".join(map(str, known.values())) if isinstance(known, Mapping) else "unknown"
        return [f"the policies are {', '.join(targets.values())}, not {shown}"]
    found: list[str] = []
    for label, target in targets.items():
        if (run / label / SETTINGS).is_file():
            found += [each for each in compare_settings(run / label, settings[target]) if each not in found]
    return found


def _record_settings(folder: Path, settings: Settings) -> None:
    """Write the settings of an evaluation that has not started, as a process would that was killed at its start."""
    if (folder / "run.json").exists():
        return
    lock = lock_folder(folder)
    try:
        write_json(folder / SETTINGS, to_public_dict(settings))
    finally:
        unlock_folder(lock)


def _note(plan: SeveralModels, label: str, status: str, error: FinqaError | None = None) -> None:
    facts = read_document(plan.path / "run.json")
    step = {"status": status, **({"error": error.message} if error is not None else {})}
    write_json(plan.path / "run.json", {**facts, "steps": {**facts.get("steps", {}), label: step}})


def _finish(plan: SeveralModels, status: str) -> None:
    facts = read_document(plan.path / "run.json")
    write_json(plan.path / "run.json", {**facts, "status": status, "finished": now()})
