"""Grades recorded attempts again by other rules or another reward, without an engine or a sandbox."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Environment, Session, TextSession
from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.evaluation.evaluate import OUTPUTS, eval_parameters, read_attempts, sum_up, write_results
from finqa_cli.evaluation.planned_evaluation import GRADER
from finqa_cli.evaluation.unfinished_run import TARGET, stored_target
from finqa_cli.extend import registry
from finqa_cli.grading import JUDGES, STRICT, versioned
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.right_answers import compare_with_truth
from finqa_cli.runs.run_folder import MANIFEST, new_run, read_settings, write_manifest
from finqa_cli.runs.trajectory_records import recorded_trajectory
from finqa_cli.settings import Settings, from_public_dict, to_public_dict
from finqa_cli.settings.recorded_versions import from_record, with_versions
from finqa_cli.statistics import EvalReport, read_outcome
from finqa_cli.statistics.intervals import clustered_mean, t_test
from finqa_cli.statistics.outcomes import Outcome, by_question
from finqa_cli.statistics.paired import PairedDifference, paired_difference
from finqa_cli.types import AssistantTurn, Observation, Rewards, Trajectory, Turn
from finqa_cli.types.token_use import recorded_use
from finqa_cli.wiring.build import open_environment

RULES = (GRADER, "grader.", "reward.name", "reward.options.")
"""Settings that change verdicts but no prompts: the only ones that a rescored evaluation may change."""

LIMIT = "run.max_cost"
"""Limit of what a judge costs."""

PHASE = "rescore"
LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """Two verdicts on the same attempts.

    Attributes:
        source: The evaluation that was graded again.
        run: Folder with the new verdicts, which has the files of any evaluation.
        before: Report under the old rules, computed again.
        after: Report under the new rules.
        accuracy: New minus old share of right attempts, question by question; None without a graded attempt.
        reward: New minus old mean reward with its interval: difference, low, high; None without a graded attempt.
        now_right: Attempts that were wrong before and are right now.
        now_wrong: Attempts that were right before and are wrong now.
    """

    source: Path
    run: Path
    before: EvalReport
    after: EvalReport
    accuracy: PairedDifference | None
    reward: tuple[float, float, float] | None
    now_right: int
    now_wrong: int

    def document(self) -> dict[str, Any]:
        """Return the `--json` form."""
        return {
            "rescored": str(self.source),
            "run": str(self.run),
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "accuracy_difference": None if self.accuracy is None else asdict(self.accuracy),
            "reward_difference": None
            if self.reward is None
            else dict(zip(("mean", "low", "high"), self.reward, strict=True)),
            "now_right": self.now_right,
            "now_wrong": self.now_wrong,
        }


def rescoring_settings(source: Path, changes: Mapping[str, Any]) -> Settings:
    """Return the settings of an evaluation with other rules.

    Args:
        source: Folder of the evaluation.
        changes: Dotted path -> value; paths of `RULES`, and with a judge `LIMIT`.

    Raises:
        UsageError: There are no changes, or a setting affects more than the verdict.
        DataError: The folder is not an evaluation.
        ConfigError: The settings are of another version of finqa, or a value is wrong.
    """
    if read_document(source / "run.json").get("command") != "eval":
        raise DataError(f"{source} is no evaluation.", remedy="finqa ls, which names the command of each run")
    judged = versioned(str(changes.get(GRADER, ""))) in JUDGES
    allowed = (*RULES, LIMIT) if judged else RULES
    if wrong := [path for path in changes if not path.startswith(allowed)]:
        raise UsageError(
            f"{wrong[0]} affects more than the verdict on recorded attempts.",
            remedy="finqa eval TARGET, which plays; --rescore takes --grader, --reward, and options of both by --set",
        )
    if not changes:
        raise UsageError("No other rules are given.", remedy=advise_rules(source))
    public = from_record(read_settings(source))
    environment = dict(public["environment"])
    recorded = {**public, "environment": environment, "run": {**public["run"], "max_cost": changes.get(LIMIT)}}
    if GRADER in changes:
        environment["options"] = {**environment["options"], "grader": changes[GRADER]}
        recorded["grader"] = Settings().grader.model_dump()  # a judge of before belongs to the grader of before
    for kind in ("grader", "reward"):
        recorded[kind] = _chosen(kind, recorded.get(kind) or Settings().grader.model_dump(), changes)
    return from_public_dict(with_versions(recorded))


def _chosen(kind: str, choice: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a component with changes; options of another component are left out."""
    name, start = changes.get(f"{kind}.name", choice["name"]), f"{kind}.options."
    options = choice["options"] if name == choice["name"] else {}
    changed = {path.removeprefix(start): value for path, value in changes.items() if path.startswith(start)}
    return {"name": name, "options": {**options, **changed}}


def advise_rules(source: Path) -> str:
    """Return a command that grades the attempts of an evaluation by other rules, if its environment has other rules."""
    name = str(read_settings(source).get("environment", {}).get("name"))
    options = registry().config_class(registry().find("environment", name))
    graded = options is not None and "grader" in options.model_fields
    return (
        f"finqa eval --rescore {source} --grader strict"
        if graded
        else "finqa eval TARGET, which plays the attempts again"
    )


async def count_graded_otherwise(settings: Settings, run: Path, reporter: Reporter) -> int:
    """Return the number of attempts of an evaluation that the newest `strict` grades otherwise than its own rules.

    0 where the environment has no such rules, or none of its own because its server is somewhere else. An answer that
    `strict` would have returned to the policy is graded as it is.

    Raises:
        DataError: A record is damaged, or the data has changed since.
    """
    chosen = settings.environment
    config = registry().config_class(registry().find("environment", chosen.name))
    if config is None or "grader" not in config.model_fields or chosen.options.get("url"):
        return 0
    if to_public_dict(settings)["environment"]["options"].get("grader") == STRICT:
        return 0
    count = 0
    try:
        environment = await asyncio.to_thread(open_environment, rescoring_settings(run, {GRADER: STRICT}), reporter)
        for record in read_attempts(run):
            trajectory = recorded_trajectory(record)
            if trajectory.rewards is not None:
                now = await grade_again(environment, trajectory)
                count += now.components.get("correct") != trajectory.rewards.components.get("correct")
    except ConfigError:  # an environment of a plugin has other graders, or grades in its sandbox only
        return 0
    return count


async def rescore(settings: Settings, source: Path, run: Path, *, reporter: Reporter, stopper: Stopper) -> Rescored:
    """Grade the attempts of an evaluation again and write the files of an evaluation; faults stay faults.

    Args:
        settings: Settings from `rescoring_settings`.
        source: Folder of the evaluation, which is not changed.
        run: A new folder.
        reporter: Receives progress.
        stopper: Decides when to stop.

    Raises:
        DataError: There are no attempts, a record is damaged, or the data has changed since.
        ConfigError: The environment cannot grade recorded attempts, or an option is wrong.
        EnvironmentFault: The reward failed.
        InterruptedRun: A signal stopped it.
    """
    records = sorted(read_attempts(source), key=lambda record: str(record["id"]))
    if not records:
        raise DataError(f"{source} has no attempts to grade.", remedy=f"finqa show {source}")
    environment = await asyncio.to_thread(open_environment, settings, reporter)
    manifest = read_document(source / MANIFEST)
    data = environment.data()
    if (known := manifest.get("inputs", {}).get("data", {}).get("digest")) not in (None, data.digest):
        raise DataError(f"{source} played {known}, and {data.name} is {data.digest} now.", remedy="finqa snapshot list")
    target = stored_target(source) or ""
    parameters = eval_parameters(settings, target)
    more = {TARGET: target, "rescored": str(source)}
    before = [recorded_trajectory(record) for record in records]
    with new_run(run, command="eval", settings=settings, more=more) as folder:
        folder.link(target, str(source))
        folder.plan(len(records))
        reporter.start(PHASE, len(records))
        written: list[dict[str, Any]] = []
        try:
            async for rewards in _grade_in_order(environment, before, settings.pool.max_concurrent_play):
                stopper.check()
                record, trajectory = records[len(written)], before[len(written)]
                facts = compare_with_truth(environment, trajectory)
                written.append({**record, **facts, **({} if rewards is None else _verdict(record, rewards))})
                await asyncio.wrap_future(folder.attempt(written[-1]))
                reporter.advance(PHASE, len(written))
        finally:
            await environment.close()
        reporter.finish(PHASE)
        after = [recorded_trajectory(record) for record in written]
        uses = {str(record["id"]): recorded_use(record) for record in records}
        reports = [sum_up(environment, settings, each, uses=uses) for each in (before, after)]
        split = str(records[0]["task"]["split"])
        write_results(run, written, reports[1], {"target": target, "data": asdict(data), "split": split})
        inputs = {**manifest.get("inputs", {}), "data": asdict(data), "rescored": {"run": str(source)}}
        outputs = [run / name for name in OUTPUTS]
        await asyncio.to_thread(write_manifest, run, "eval", parameters=parameters, inputs=inputs, outputs=outputs)
        folder.finish("completed")
    return _compare(source, run, reports, [[read_outcome(record) for record in each] for each in (records, written)])


async def _grade_in_order(
    environment: Environment, trajectories: Sequence[Trajectory], at_once: int
) -> AsyncIterator[Rewards | None]:
    """Yield the verdict on each attempt, None for a fault; up to `at_once` are graded concurrently, for a judge."""
    free = asyncio.Semaphore(at_once)

    async def graded(trajectory: Trajectory) -> Rewards | None:
        async with free:
            return None if trajectory.rewards is None else await grade_again(environment, trajectory)

    tasks = [asyncio.create_task(graded(trajectory)) for trajectory in trajectories]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def grade_again(environment: Environment, trajectory: Trajectory) -> Rewards:
    """Return the verdict on a recorded attempt.

    Raises:
        ConfigError: The environment grades in its sandbox only.
        DataError: The environment now replies differently, so the verdict would be about another episode.
        EnvironmentFault: The reward failed.
    """
    if (rewards := await environment.regrade(trajectory)) is not None:
        return rewards
    if environment.sandbox_spec() is not None:
        raise ConfigError(
            f"{environment.__class__.__name__} grades in its sandbox: recorded attempts cannot be graded without one.",
            remedy="finqa eval TARGET, which plays the attempts again",
        )
    session = await environment.open(trajectory.task, seed=trajectory.seed, sandbox=None)
    try:
        for number, turn in enumerate(trajectory.turns, start=1):
            replies = await _repeat(session, turn)
            recorded = [turn.observation, *(step.observation for step in turn.further_steps)]
            if replies and [each.text for each in replies] != [each.text for each in recorded if each is not None]:
                raise DataError(
                    f"The environment answers turn {number} of {trajectory.id} other than it did.",
                    remedy="finqa eval TARGET, which plays the attempts again",
                )
        return await session.grade()
    finally:
        await session.close()


async def _repeat(session: Session | TextSession, turn: Turn) -> list[Observation]:
    """Return the session's replies to a recorded turn; [] if the turn had a parse error, which no session receives."""
    further = tuple(step.call for step in turn.further_steps)
    said = AssistantTurn(
        text=turn.text, words=turn.words, tool_call=turn.tool_call, further_calls=further, parse_error=turn.parse_error
    )
    if turn.parse_error:
        return []
    await session.begin_turn(said)
    if isinstance(session, TextSession) or turn.tool_call is None:
        return [await session.reply(turn.text)]
    return [await session.step(call) for call in said.calls]


def _verdict(record: Mapping[str, Any], rewards: Rewards) -> dict[str, Any]:
    """Return the fields of a record that depend on the verdict."""
    metadata = {name: value for name, value in record["metadata"].items() if name != "judge"}
    return {
        "metadata": {**metadata, **({"judge": dict(rewards.judged)} if rewards.judged else {})},
        "reward": rewards.total,
        "components": dict(rewards.components),
        "explanation": rewards.explanation,
        "weight": rewards.weight,
    }


def _compare(source: Path, run: Path, reports: Sequence[EvalReport], outcomes: Sequence[Sequence[Outcome]]) -> Rescored:
    pairs = [pair for pair in zip(*outcomes, strict=True) if pair[0].correct is not None]
    old, new = (by_question(each) for each in outcomes)
    clusters = [members[0].company for members in old.values()]
    shares = [
        [statistics.fmean(bool(one.correct) for one in members) for members in each.values()] for each in (new, old)
    ]
    rewards = [
        [statistics.fmean(one.reward or 0.0 for one in members) for members in each.values()] for each in (new, old)
    ]
    reward = None
    if pairs:
        found = clustered_mean([one - other for one, other in zip(*rewards, strict=True)], clusters)
        margin, _ = t_test(found.mean, found.error, degrees=found.degrees, clusters=found.clusters, level=LEVEL)
        reward = found.mean, found.mean - margin, found.mean + margin
    return Rescored(
        source=source,
        run=run,
        before=reports[0],
        after=reports[1],
        accuracy=paired_difference(shares[0], shares[1], clusters, level=LEVEL) if pairs else None,
        reward=reward,
        now_right=sum(not one.correct and bool(other.correct) for one, other in pairs),
        now_wrong=sum(bool(one.correct) and not other.correct for one, other in pairs),
    )
