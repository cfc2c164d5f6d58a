"""Plans an evaluation: settings that follow from its target, and the folder of a new or unfinished run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError, ThresholdError, UsageError
from finqa_cli.evaluation.evaluate import EvalResult, is_engine, policy_of, read_attempts
from finqa_cli.evaluation.unfinished_run import check_same, find_unfinished, stored_target
from finqa_cli.extend import registry
from finqa_cli.grading import JUDGES
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_folder import is_over, read_run, read_settings
from finqa_cli.settings import Settings
from finqa_cli.statistics import read_outcome
from finqa_cli.types import Status
from finqa_cli.wiring.command_settings import RUNS, played_prefix, run_path, stored_settings
from finqa_cli.wiring.policies import settings_of
from finqa_cli.wiring.provider_targets import provider_settings

FOLLOWED = (
    *("environment.name", "data.snapshot", "data.path", "data.eval_split", "reward.name", "model.name"),
    "generation.max_steps",
    *("generation.max_gen_tokens", "train.seed", "lora.rank", "codec.name"),
)
"""Settings that an evaluation takes from the run that made the policy, unless the user gives them."""

REPLIES = "replies"
"""Option of engines that record the replies of a server."""

GRADER = "environment.options.grader"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEvaluation:
    """An evaluation to play.

    Attributes:
        settings: Settings of the evaluation.
        target: Policy or engine that plays.
        run: Folder of the evaluation.
        resumes: Whether the folder contains an unfinished evaluation to resume.
    """

    settings: Settings
    target: str
    run: Path
    resumes: bool

    @property
    def resume_command(self) -> str:
        """The command that resumes the evaluation."""
        return f"finqa eval --resume {self.run}"


def target_settings(given: Mapping[str, Any], target: str) -> dict[str, Any]:
    """Return the settings that a target implies: its engine or provider, or those of the run that made it.

    Args:
        given: Dotted path -> value of the settings that the user gives with the target; they are not implied.
        target: Policy or engine that plays.

    Raises:
        UsageError: The target is an engine, and another one is given.
        ConfigError: The address of the provider is not set.
    """
    if is_engine(target):
        if (other := given.get("engine.name")) not in (None, target):
            raise UsageError(
                f"{target} has its own engine, so --engine {other} would have no effect.",
                remedy=f"leave --engine out, or give a policy for {other} instead of {target}",
            )
        return {"engine.name": target}
    if (hosted := provider_settings(target, given)) is not None:
        return hosted
    if (stored := settings_of(target)) is None:
        return {"model.name": target}
    followed: dict[str, Any] = {}
    for path in FOLLOWED:
        section, _, field = path.partition(".")
        followed[path] = stored[section][field]
    for kind in ("environment", "reward", "codec"):
        if f"{kind}.name" not in given:
            followed |= {f"{kind}.options.{key}": value for key, value in stored[kind]["options"].items()}
    if given.get("data.snapshot", stored["data"]["snapshot"]) != stored["data"]["snapshot"]:
        followed.pop(GRADER, None)  # other data names its own
    elif followed.get(GRADER) in JUDGES and GRADER not in given and (judge := stored.get("grader")):
        followed["grader.name"] = judge["name"]
        followed |= {f"grader.options.{key}": value for key, value in judge["options"].items()}
    return {path: value for path, value in followed.items() if path not in given}


def settings_of_questions(run: Path, *, failed: bool, faulted: bool) -> dict[str, Any]:
    """Return the settings that ask the questions of an evaluation again: its data, environment, and their ids.

    Args:
        run: Folder of the evaluation.
        failed: The questions with an attempt that is not right.
        faulted: Those with an attempt that ended in a fault; with neither, all questions.

    Raises:
        DataError: The folder is not a run that played, or none of its attempts is of that kind.
    """
    records = [record for record in read_attempts(run) if record.get("phase", "eval") == "eval"]
    stored = read_settings(run)
    ids: dict[str, None] = {}
    for outcome in map(read_outcome, records):
        is_fault = outcome.correct is None
        if not (failed or faulted) or (faulted and is_fault) or (failed and outcome.correct is False):
            ids[outcome.question] = None
    if not ids:
        kind = " or ".join([*(["wrong"] if failed else []), *(["faulted"] if faulted else [])])
        raise DataError(f"{run} has no {kind} attempt.".replace("  ", " "), remedy=f"finqa show {run}")
    splits = dict.fromkeys(str(record["task"]["split"]) for record in records)
    environment, data = stored["environment"], stored["data"]
    return {
        "environment.name": environment["name"],
        **{f"environment.options.{name}": value for name, value in environment["options"].items()},
        "data.snapshot": data["snapshot"],
        "data.path": data["path"],
        "data.eval_split": ",".join(splits),
        "eval.ids": tuple(ids),
    }


def with_recorded_replies(settings: Settings) -> Settings:
    """Return the settings with a folder of recorded replies below `data.home`.

    Raises:
        UsageError: The engine sends no requests whose replies could be recorded.
    """
    engine = settings.engine
    options = registry().config_class(registry().find("engine", engine.name))
    if options is None or REPLIES not in options.model_fields:
        raise UsageError(
            f"Engine {engine.name} sends no requests, so --cache would have no effect.", remedy="leave it out"
        )
    own = {**engine.options, REPLIES: engine.options.get(REPLIES) or str(settings.data.home / REPLIES)}
    return settings.model_copy(update={"engine": engine.model_copy(update={"options": own})})


def plan_evaluation(settings: Settings, target: str, *, fresh: bool) -> PlannedEvaluation:
    """Return the evaluation of a target: the one that was started with the same settings and did not end, or a new one.

    Args:
        settings: Settings of the evaluation.
        target: Policy or engine that plays.
        fresh: Start a new evaluation, even if the same one was started and did not end.

    Raises:
        ConfigError: The folder of the settings contains an unfinished evaluation of another policy or other settings.
    """
    begun = None if fresh else _begun(settings, target)
    run = begun or run_path(settings, played_prefix("eval", target, settings))
    return PlannedEvaluation(settings=settings, target=target, run=run, resumes=begun is not None)


def plan_resumption(run: Path, given: Mapping[str, Any]) -> PlannedEvaluation:
    """Return the evaluation in a folder, to play its missing attempts.

    Args:
        run: The folder.
        given: Settings that the user gives; see `stored_settings`.

    Raises:
        UsageError: The evaluation is finished.
        DataError: The folder does not record which policy it evaluates.
        ConfigError: Its settings are of another version of finqa, or it does not fit on this machine.
    """
    if is_over(read_run(run)):
        raise UsageError(f"{run} is already finished: all of its attempts are played.", remedy=f"finqa show {run}")
    if (target := stored_target(run)) is None:
        raise DataError(f"{run} does not record which policy it evaluates.", remedy="finqa eval TARGET")
    return PlannedEvaluation(settings=stored_settings(run, "play", given), target=target, run=run, resumes=True)


def check_faults(result: EvalResult, settings: Settings) -> None:
    """Check that no more episodes ended in faults than the settings allow.

    Raises:
        ThresholdError: More episodes ended in faults; the message has the most frequent error.
    """
    report = result.report
    if report.faults <= settings.pool.max_fault_share * report.episodes:
        return
    records = read_jsonl(result.run / "trajectories.jsonl")
    faults = [record for record in records if Status(record["status"]).is_fault]
    reasons = Counter((str(record["error"]).rstrip("."), str(record["status"])) for record in faults)
    (reason, status), count = reasons.most_common(1)[0]
    run = shlex.quote(str(result.run))
    others = "" if report.faults == report.episodes else " The accuracy is computed from the others."
    again = f"finqa eval --resume {run}, which plays those episodes again"
    if status == Status.ENVIRONMENT_ERROR and report.faults < report.episodes:
        again += ", or another --run-dir after a change of its code"
    raise ThresholdError(
        f"{report.faults} of {report.episodes} episodes ended in faults, {count} with this error: {reason}.{others}",
        remedy=f"finqa show {run} lists the errors; {again}",
    )


def _begun(settings: Settings, target: str) -> Path | None:
    """Return the folder of the evaluation that was started with the same settings and did not end; else None."""
    if (named := settings.run.dir) is not None:
        return named if check_same(named, target, settings) else None
    return find_unfinished(RUNS, target, settings, policy_of(target, settings.engine.name))
