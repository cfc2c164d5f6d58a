"""Evaluation: the rollout code of training without a learner, on the questions of a split."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from finqa_cli.contracts import Environment
from finqa_cli.errors import DataError
from finqa_cli.evaluation.cluster_nouns import cluster_noun
from finqa_cli.evaluation.reward_tests import digests_before_versions, reward_digest, reward_facts
from finqa_cli.evaluation.unfinished_run import TARGET
from finqa_cli.extend import registry
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.measures import measured
from finqa_cli.rollout.seeds import derive, draw
from finqa_cli.rollout.stream import TrajectoryListener, play_all
from finqa_cli.runs.durable_files import write_csv, write_json
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import JsonlWriter, read_jsonl
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.right_answers import compare_with_truth
from finqa_cli.runs.run_folder import FAULTS, RunFolder, new_run, policy_inputs, write_manifest
from finqa_cli.runs.spending import SPENT, make_meter
from finqa_cli.runs.tracking import Tracking
from finqa_cli.runs.trajectory_records import has_graded, recorded_trajectory, trajectory_record
from finqa_cli.settings import ENVIRONMENT, Settings, is_embedded, to_public_dict
from finqa_cli.settings.schema import EvalSettings
from finqa_cli.statistics import (
    MALFORMED,
    EvalReport,
    breakdown_rows,
    choose_samples,
    evaluation_metrics,
    failure_counts,
    item_rows,
    read_outcome,
    summarize,
)
from finqa_cli.types import DataInfo, PolicyVersion, Task, Trajectory
from finqa_cli.types.splits import choose_split
from finqa_cli.types.token_use import TokenUse, recorded_use
from finqa_cli.wiring.policies import resolve_for
from finqa_cli.wiring.stage import EpisodeCount, Stage, stage

OUTPUTS = (
    "report.json",
    "metrics.json",
    "breakdown.csv",
    "items.csv",
    "trajectories.jsonl",
    "samples/predictions.jsonl",
)
"""Files of an evaluation; the manifest has their digests."""

_MOST_NAMES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """An evaluation: its folder, policy or engine, data, split (as its tasks name it), rules, limit of tokens, report.

    `rules` names environment, grader and reward, `turn_seconds` is the mean time of a turn.
    """

    run: Path
    target: str
    data: DataInfo
    split: str
    rules: str
    max_gen_tokens: int
    report: EvalReport
    turn_seconds: float | None = None


async def evaluate(
    settings: Settings, target: str, run: Path, *, resume: bool = False, reporter: Reporter, stopper: Stopper
) -> EvalResult:
    """Plays every question of the evaluation split and writes manifest.json and the files of `write_results`.

    Every attempt is in trajectories.jsonl as soon as it ends. A resumed evaluation plays attempts that are missing
    there; those that ended in faults are moved aside and played again.

    Args:
        settings: Settings of the evaluation; for a resumed one, its own.
        target: Policy or engine that plays.
        run: A new folder, or with `resume` the folder of an evaluation that did not end.
        resume: Resume the evaluation.
        reporter: Receives progress.
        stopper: Decides when to stop.

    Raises:
        DataError: The split has no questions, or records of the interrupted evaluation are damaged.
        ConfigError: A component or its options are wrong, and then there is no run folder; or data, policy or reward
            are no longer those that the evaluation began with.
        InterruptedRun: A signal stopped it; finished episodes are on disk.
    """
    policy = policy_of(target, settings.engine.name)
    with reporter.work(f"reading {target}"):
        inputs: dict[str, Any] = {"policy": await asyncio.to_thread(policy_inputs, policy)}
    parameters = eval_parameters(settings, target)
    meter = make_meter(settings, reporter, stopper)
    with _open_run(run, target, settings, resume) as folder:
        folder.link(target)
        folder.pin("policy digest", inputs["policy"]["sha256"] or policy.model or target)
        tracking = Tracking(folder, (), reporter)
        played = _Played(folder, tracking, read_attempts(run) if resume else ())
        meter.add_recorded(played.records.values())
        meter.keep_in(partial(folder.note, SPENT))
        with tracking.run(to_public_dict(settings)):
            async with stage(
                settings,
                policy,
                run_id=folder.path.name,
                reporter=reporter,
                check_stop=stopper.check,
                run_dir=folder.path,
                episodes=lambda environment: len(missing_attempts(environment, settings, played.records)),
                on_event=lambda name, facts: folder.event(name, **facts),
                meter=meter,
            ) as parts:
                tasks = eval_tasks(parts.environment, settings)
                if not tasks:
                    raise _no_questions(parts, settings)
                folder.plan(len(tasks) * settings.eval.attempts)
                pin_inputs(folder, parts, parameters["reward"])
                write_manifest(run, "eval", parameters=parameters, inputs=inputs | parts.inputs())
                attempts = missing_attempts(parts.environment, settings, played.records)
                if played.records:
                    reporter.line(f"{len(played.records)} attempts are recorded; {len(attempts)} are left to play.")
                meter.plan(len(attempts), run, settings)
                listener = partial(played.add, parts.environment)
                await play_attempts(
                    parts, settings, attempts, on_trajectory=listener, reporter=reporter, stopper=stopper
                )
                inputs |= parts.inputs()
                stopper.check(f"finqa eval --resume {run}")
                report = played.sum_up(parts.environment, settings)
            records = played.in_order()
            facts = {"target": target, "data": asdict(parts.data), "split": tasks[0].split}
            report = write_results(run, records, report, facts)
            outputs = [run / name for name in OUTPUTS]
            await asyncio.to_thread(write_manifest, run, "eval", parameters=parameters, inputs=inputs, outputs=outputs)
            folder.note(FAULTS, report.faults)
            folder.finish("completed")
            tracking.evaluated(0, report.to_dict())
            return EvalResult(
                run=run,
                target=target,
                data=parts.data,
                split=tasks[0].split,
                rules=name_rules(settings, parts.environment),
                max_gen_tokens=settings.generation.max_gen_tokens,
                report=report,
                turn_seconds=played.turn_seconds(),
            )


def _no_questions(parts: Stage, settings: Settings) -> DataError:
    return DataError(f"Split {eval_split(parts.environment, settings)!r} of {parts.data.name!r} has no questions.")


def name_rules(settings: Settings, environment: Environment) -> str:
    """Returns by which rules answers are judged: `environment finqa, grader openenv, reward weighted`."""
    chosen = {"environment": settings.environment.name, "grader": environment.grader}
    if settings.reward.name != ENVIRONMENT:
        chosen["reward"] = settings.reward.name
    return ", ".join(f"{kind} {name}" for kind, name in chosen.items() if name)


class _Played:
    """The attempts of an evaluation that are on disk.

    Attributes:
        records: Attempt id -> record, for attempts that were on disk before this process.
    """

    def __init__(self, folder: RunFolder, tracking: Tracking, records: Iterable[Mapping[str, Any]]) -> None:
        """Creates the collection from the `records` of an earlier process; empty in a new evaluation."""
        self._folder = folder
        self._tracking = tracking
        self.records = {str(record["id"]): record for record in records}
        self._trajectories = {name: recorded_trajectory(record) for name, record in self.records.items()}
        self._facts: dict[str, Mapping[str, Any]] = {}

    async def add(self, environment: Environment, trajectory: Trajectory) -> None:
        """Writes an attempt; returns when it is on disk."""
        facts = {"phase": "eval", "iteration": 0, **compare_with_truth(environment, trajectory)}
        await asyncio.wrap_future(self._folder.trajectory(trajectory, **facts))
        self._facts[trajectory.id] = facts
        self._trajectories[trajectory.id] = trajectory
        self._tracking.trajectory(trajectory, facts)

    def in_order(self) -> list[Mapping[str, Any]]:
        """Returns the records in order of their ids."""
        played = {name: {**facts, **trajectory_record(self._trajectories[name])} for name, facts in self._facts.items()}
        return [record for _, record in sorted({**self.records, **played}.items())]

    def turn_seconds(self) -> float | None:
        """Returns the mean seconds of a turn; None without turns. Not in the report, which timing must not change."""
        seconds = [turn.seconds for trajectory in self._trajectories.values() for turn in trajectory.turns]
        return math.fsum(seconds) / len(seconds) if seconds else None

    def sum_up(self, environment: Environment, settings: Settings) -> EvalReport:
        """Sums up all attempts."""
        before = {name: record for name, record in self.records.items() if name not in self._facts}
        uses = {name: recorded_use(record) for name, record in before.items()}
        trajectories = [trajectory for _, trajectory in sorted(self._trajectories.items())]
        return sum_up(environment, settings, trajectories, uses=uses)


def _open_run(run: Path, target: str, settings: Settings, resume: bool) -> AbstractContextManager[RunFolder]:
    if not resume:
        return new_run(run, command="eval", settings=settings, more={TARGET: target})
    facts, token_ids = to_public_dict(settings), settings.run.save_token_ids
    return RunFolder.reopen(run, settings=facts, save_token_ids=token_ids, iteration=0, keep=_is_graded)


def _is_graded(record: Mapping[str, Any]) -> bool:
    return record["reward"] is not None


def read_attempts(run: Path) -> list[dict[str, Any]]:
    """Reads the attempts of an evaluation, in the order in which they ended.

    Raises:
        DataError: A line is damaged or not an attempt.
    """
    file = run / "trajectories.jsonl"
    if not file.exists():
        return []
    found = []
    for number, record in enumerate(read_jsonl(file), start=1):
        try:
            recorded_trajectory(record), read_outcome(record)
        except MALFORMED as error:
            reason = f"{file}, line {number}: not a trajectory record ({error!r})."
            raise DataError(reason, remedy=f"correct or remove that line of {file}") from error
        found.append(record)
    return found


def pin_inputs(folder: RunFolder, parts: Stage, reward: Mapping[str, Any]) -> None:
    """Records the digests of data, reward and prompts; in a resumed run they must equal the recorded ones.

    Where nothing is graded yet they may differ: a run whose own code failed is resumed once the code is corrected.

    Args:
        folder: Folder of the run.
        parts: Environment and data of the run.
        reward: See `reward_facts`.

    Raises:
        ConfigError: A digest differs.
    """
    fixed = has_graded(folder.path)
    data = "snapshot digest" if folder.command == "train" else "data digest"
    folder.pin(data, parts.data.digest, fixed=fixed)
    folder.pin("reward digest", reward_digest(reward), formerly=digests_before_versions(reward), fixed=fixed)
    for name, digest in parts.environment.inputs().items():
        folder.pin(f"{name} digest", digest, fixed=fixed)


def missing_attempts(environment: Environment, settings: Settings, known: Collection[str]) -> list[Attempt]:
    """Returns the attempts of the evaluation split whose ids are not known, question by question."""
    attempts = make_attempts(eval_tasks(environment, settings), settings, "eval")
    return [attempt for attempt in attempts if attempt.id not in known]


def make_attempts(tasks: Sequence[Task], settings: Settings, key: str) -> list[Attempt]:
    """Returns `eval.attempts` attempts at each task; their ids begin with the key."""
    return [
        Attempt(
            id=f"{key}/{task.id}/{member}",
            task=task,
            member=member,
            seed=derive(settings.train.seed, "eval", task.id, member),
        )
        for task in tasks
        for member in range(settings.eval.attempts)
    ]


async def evaluate_tasks(
    parts: Stage,
    settings: Settings,
    tasks: Sequence[Task],
    *,
    on_trajectory: TrajectoryListener,
    reporter: Reporter,
    stopper: Stopper,
    key: str,
) -> EvalReport:
    """Plays the tasks at the evaluation temperature, `eval.attempts` times each, and sums up."""
    attempts = make_attempts(tasks, settings, key)
    trajectories = await play_attempts(
        parts, settings, attempts, on_trajectory=on_trajectory, reporter=reporter, stopper=stopper
    )
    return sum_up(parts.environment, settings, trajectories)


async def play_attempts(
    parts: Stage,
    settings: Settings,
    attempts: Sequence[Attempt],
    *,
    on_trajectory: TrajectoryListener,
    reporter: Reporter,
    stopper: Stopper,
) -> list[Trajectory]:
    """Plays attempts at the evaluation temperature. After a requested stop, running attempts end and none start."""
    shown = EpisodeCount(reporter, "eval", len(attempts))

    async def listen(trajectory: Trajectory) -> None:
        if (recorded := on_trajectory(trajectory)) is not None:
            await recorded
        shown.add(trajectory)

    try:
        with reporter.work(f"evaluation of {len(attempts)} episodes", shown=False), stopper.keeping(parts.costs_money):
            return await play_all(
                parts.player(settings, temperature=settings.eval.temperature),
                attempts,
                concurrency=settings.pool.concurrency,
                on_trajectory=listen,
                stopping=lambda: stopper.requested,
                admits=parts.admits,
            )
    finally:
        reporter.finish("eval")


def sum_up(
    environment: Environment,
    settings: Settings,
    trajectories: Sequence[Trajectory],
    *,
    uses: Mapping[str, TokenUse | None] = MappingProxyType({}),
) -> EvalReport:
    """Sums up an evaluation with the environment's own figures.

    Args:
        environment: The environment that was played.
        settings: Settings of the evaluation.
        trajectories: All attempts, faults included.
        uses: See `summarize`.
    """
    report = summarize(
        trajectories,
        measured(environment, trajectories),
        clustered_by=cluster_noun(settings.environment.name, settings.environment.options),
        uses=uses,
    )
    # quoting years is what the small policy learns first; of other models it says nothing
    return report if is_embedded(settings.model.name) else replace(report, quoted_years=None)


def eval_tasks(environment: Environment, settings: Settings) -> Sequence[Task]:
    """Returns the questions of the evaluation split, or `eval.limit` of them, drawn by `eval.seed` only."""
    return _limited(environment.tasks(eval_split(environment, settings)), settings)


def held_out_tasks(environment: Environment, settings: Settings) -> Sequence[Task]:
    """Returns the questions to evaluate on during training, limited as in `eval_tasks`; () if there is no split."""
    split = held_out_split(environment, settings)
    return _limited(environment.tasks(split), settings) if split else ()


def eval_split(environment: Environment, settings: Settings) -> str:
    """Returns the split to evaluate on: the first split in the settings that the environment has."""
    return choose_split(settings.data.eval_split, environment.splits())


def held_out_split(environment: Environment, settings: Settings) -> str:
    """Returns the split to evaluate on during training, or "".

    It is `eval_split`, or "" if that is the training split because the environment lacks the first split in the
    settings.
    """
    split, asked = eval_split(environment, settings), settings.data.eval_split.partition(",")[0].strip()
    return "" if split == settings.data.train_split != asked else split


def _limited(tasks: Sequence[Task], settings: Settings) -> Sequence[Task]:
    chosen = select_tasks(tasks, settings.eval)
    if not settings.eval.limit:
        return chosen
    return draw(chosen, seed=derive(settings.eval.seed, "eval-limit"), position=0, count=settings.eval.limit)[0]


def select_tasks(tasks: Sequence[Task], wanted: EvalSettings) -> Sequence[Task]:
    """Returns the questions that the settings name by id, type, company and position; all where they name none.

    Raises:
        DataError: A name matches no question, or no question matches all of them.
    """
    found = list(tasks)
    if wanted.range is not None:
        first, last = map(int, wanted.range.split("-"))
        found = found[first - 1 : last]
    filters: tuple[tuple[str, Collection[str], Callable[[Task], str]], ...] = (
        ("--ids", wanted.ids, lambda task: task.id),
        ("--kind", wanted.kinds, lambda task: task.kind),
        ("--company", wanted.companies, lambda task: task.cluster),
    )
    for flag, names, value in filters:
        known = {value(task) for task in tasks}
        if unknown := [name for name in names if name not in known]:
            shown = ", ".join(sorted(known)[:_MOST_NAMES])
            raise DataError(
                f"No question of this split has {flag} {unknown[0]}; it has: {shown}.", remedy="finqa data ls"
            )
        found = [task for task in found if not names or value(task) in names]
    if tasks and not found:
        raise DataError(
            f"None of the {len(tasks)} questions matches --range, --ids, --kind and --company together.",
            remedy="leave one of them out",
        )
    return found


def is_engine(target: str) -> bool:
    """Returns whether the target is the name of an engine, such as `scripted`, instead of a policy."""
    return any(component.name == target for component in registry().components("engine"))


def policy_of(target: str, engine: str) -> PolicyVersion:
    """Resolves the policy of a target; for the name of an engine, such as `scripted`, it is an empty policy."""
    return PolicyVersion(number=0, model="") if is_engine(target) else resolve_for(engine, target)


def write_results(
    run: Path, records: Sequence[Mapping[str, Any]], report: EvalReport, facts: Mapping[str, Any]
) -> EvalReport:
    """Writes report.json, metrics.json, items.csv, breakdown.csv and samples/predictions.jsonl.

    Returns the report with the reasons why attempts are not right.

    Args:
        run: Folder of the run.
        records: Records of trajectories.jsonl.
        report: Report of the records.
        facts: Further fields of report.json and metrics.json.
    """
    outcomes = [read_outcome(record) for record in records]
    report = replace(report, reasons=failure_counts(outcomes))
    write_json(run / "report.json", {**facts, **report.to_dict()})
    metrics = evaluation_metrics(outcomes)
    write_json(run / "metrics.json", {"schema_version": 1, **facts, "measures": report.measures, **metrics})
    write_csv(run / "items.csv", item_rows(records))
    write_csv(run / "breakdown.csv", breakdown_rows(outcomes))
    by_place = {(outcome.question, outcome.member): record for outcome, record in zip(outcomes, records, strict=True)}
    file = run / "samples" / "predictions.jsonl"
    file.unlink(missing_ok=True)  # from an evaluation that was killed while it wrote the samples
    samples = JsonlWriter(file)
    for outcome in choose_samples(outcomes):
        record = by_place[outcome.question, outcome.member]
        samples.append({"failure_reason": outcome.reason, "answer": outcome.answer, **record})
    samples.close()
    return report


def eval_parameters(settings: Settings, target: str) -> dict[str, Any]:
    """Returns the parameters that the results depend on, for the manifest."""
    public = to_public_dict(settings)
    sections = ("eval", "generation", "environment", "engine", "codec")
    return {
        "target": target,
        "split": settings.data.eval_split,
        "seed": settings.train.seed,
        **{section: public[section] for section in sections},
        "reward": reward_facts(settings),
    }
