"""Candidates: several attempts at each question of a split, and the files that contain them.

candidates.jsonl and scores.jsonl have one line per question, written once all its attempts are played;
trajectories.jsonl has every attempt as soon as it ends.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Environment
from finqa_cli.errors import ConfigError, DataError, ThresholdError
from finqa_cli.evaluation.evaluate import eval_split, eval_tasks, pin_inputs, policy_of
from finqa_cli.evaluation.reward_tests import reward_facts
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.seeds import derive
from finqa_cli.rollout.stream import play_stream
from finqa_cli.runs.durable_files import write_json
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import GroupCommit, read_jsonl, rewind
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder, policy_inputs, write_manifest
from finqa_cli.runs.spending import SPENT, make_meter
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.statistics import MALFORMED, Outcome, by_question, evaluation_metrics, read_outcome
from finqa_cli.statistics.outcomes import add_tokens
from finqa_cli.types import PolicyVersion, Status, Task, Trajectory
from finqa_cli.wiring.stage import EpisodeCount, Stage, stage

CANDIDATES, SCORES, LOG = "candidates.jsonl", "scores.jsonl", "trajectories.jsonl"

Record = Mapping[str, Any]

_OF_CANDIDATES = ("id", "member", "seed", "turns")
_OF_SCORES = ("id", "status", "reward", "components", "explanation", "error", "seconds")

QUICK = {"candidates": 4, "limit": 16}
"""Counts of --quick-test, unless a flag sets them."""

FLAGS = {
    "eval.attempts": "--num-candidates",
    "eval.temperature": "--temperature",
    "eval.limit": "--limit",
    "eval.seed": "--seed",
    "generation.top_p": "--top-p",
    "data.eval_split": "--split",
}
"""Settings that a sampling run takes from its own flags only, not from `--set`: path -> flag."""

WANTED_PARSE_RATE = 0.7
"""Below this rate, candidates show more about form than about answers. Module 04 of the RL-LLM FinQA pipeline
requires it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleResult:
    """Folder and results of the candidates; `report` is the content of report.json."""

    run: Path
    report: dict[str, Any]
    seconds: float


def sampling_settings(
    settings: Settings, *, candidates: int, temperature: float, top_p: float, split: str, limit: int
) -> Settings:
    """Returns the settings of a sampling run: its candidates are attempts of an evaluation at a temperature.

    Raises:
        ConfigError: The temperature is 0, and all candidates of a question would be identical; or replies are recorded,
            which are for evaluations.
    """
    if settings.engine.options.get("replies") is not None:
        raise ConfigError(
            "Candidates are trained on, and recorded replies are for evaluations only.",
            remedy="leave engine.options.replies out",
        )
    if temperature <= 0 and candidates > 1:
        raise ConfigError(
            f"At temperature {temperature:g} all {candidates} candidates of a question are identical.",
            remedy="--temperature 0.8",
        )
    wanted = {"attempts": candidates, "temperature": temperature, "limit": limit, "seed": settings.train.seed}
    chosen = settings.eval.model_copy(update=wanted)
    return settings.model_copy(
        update={
            "eval": chosen,
            "data": settings.data.model_copy(update={"eval_split": split}),
            "generation": settings.generation.model_copy(update={"top_p": top_p}),
        }
    )


async def sample(
    settings: Settings, target: str, run: Path, *, resume: bool, reporter: Reporter, stopper: Stopper
) -> SampleResult:
    """Plays `eval.attempts` candidates of each question of the split and writes candidates.jsonl and scores.jsonl.

    Every attempt is in trajectories.jsonl, with its token ids, as soon as it ends. A resumed run plays attempts that
    are missing there or ended in a fault.

    Args:
        settings: Settings from `sampling_settings`; for a resumed run, its own.
        target: Policy or engine that plays.
        run: A new folder, or with `resume` the folder of an interrupted run.
        resume: Resume the run.
        reporter: Receives progress.
        stopper: Decides when to stop.

    Raises:
        DataError: The split has no questions, or records of the interrupted run are damaged.
        ConfigError: The folder is in use, or data or policy are no longer those that the run began with.
        InterruptedRun: A signal stopped it; finished attempts are kept.
    """
    started = time.perf_counter()
    policy = policy_of(target, settings.engine.name)
    inputs = {"policy": await asyncio.to_thread(policy_inputs, policy)}
    facts = to_public_dict(settings)
    meter = make_meter(settings, reporter, stopper)  # a limit without effect leaves no folder
    opened = (
        RunFolder.reopen(run, settings=facts, save_token_ids=True, iteration=0)
        if resume
        else RunFolder.create(run, command="sample", settings=facts, save_token_ids=True)
    )
    parameters = _parameters(settings, target)
    with opened as folder, CandidateWriter(run, settings.eval.attempts) as writer:
        if not resume:  # written early, because the parameters are needed to resume the run
            write_manifest(run, "sample", parameters=parameters, inputs=inputs)
        folder.link(target)
        folder.pin("policy digest", inputs["policy"]["sha256"] or policy.model or target)
        meter.add_recorded(read_log(run))
        meter.keep_in(partial(folder.note, SPENT))
        async with stage(
            settings,
            policy,
            run_id=run.name,
            reporter=reporter,
            check_stop=lambda: stopper.check(f"finqa sample --resume {run}"),
            run_dir=run,
            episodes=lambda environment: len(list(_attempts(environment, settings, writer))),
            on_event=lambda name, facts: folder.event(name, **facts),
            meter=meter,
        ) as parts:
            tasks = eval_tasks(parts.environment, settings)
            if not tasks:
                split = eval_split(parts.environment, settings)
                raise DataError(f"Split {split!r} of {parts.data.name!r} has no questions.")
            folder.plan(len(tasks) * settings.eval.attempts)
            pin_inputs(folder, parts, parameters["reward"])
            inputs |= parts.inputs()
            write_manifest(run, "sample", parameters=parameters, inputs=inputs)
            attempts = list(_attempts(parts.environment, settings, writer))
            meter.plan(len(attempts), run, settings)
            await _play(parts, settings, attempts, folder=folder, writer=writer, reporter=reporter, stopper=stopper)
            stopper.check(f"finqa sample --resume {run}")
        asked = {"target": target, "data": asdict(parts.data), "split": tasks[0].split}
        report = {**asked, **sample_report(run, tasks, settings.eval.attempts)}
        write_json(run / "report.json", report)
        outputs = [run / name for name in (CANDIDATES, SCORES, LOG, "report.json")]
        write_manifest(run, "sample", parameters=parameters, inputs=inputs, outputs=outputs)
        folder.finish("completed")
    _tell(report, policy, reporter)
    return SampleResult(run=run, report=report, seconds=time.perf_counter() - started)


def check_candidates(result: SampleResult, settings: Settings) -> None:
    """Checks that no more attempts ended in faults than the settings allow.

    Raises:
        ThresholdError: More attempts ended in faults.
    """
    faults, candidates = result.report["faults"], result.report["candidates"]
    if faults > settings.pool.max_fault_share * (faults + candidates):
        raise ThresholdError(
            f"{faults} of {faults + candidates} attempts ended in faults and are not candidates.",
            remedy=f"finqa sample --resume {result.run}",
        )


def sample_report(run: Path, tasks: Sequence[Task], wanted: int) -> dict[str, Any]:
    """Computes counts, parse rate and the metrics of an evaluation over the candidates in the log of a run."""
    found: dict[tuple[str, int], Outcome] = {}
    texts: dict[str, set[str]] = defaultdict(set)
    token_ids = True
    for record in read_log(run):
        outcome = read_outcome(record)
        if (known := found.get(place(record))) is None or known.correct is None:
            found[place(record)] = outcome
        if outcome.correct is not None:
            texts[outcome.question].add(said(record))
            token_ids &= all(
                "completion_token_ids" in turn and turn["completion_token_ids"] for turn in record["turns"]
            )
    outcomes = [found[key] for key in sorted(found)]
    questions = by_question(outcomes)
    graded = sum(map(len, questions.values()))
    right = {name: sum(bool(each.correct) for each in members) for name, members in questions.items()}
    rewards = [[each.reward or 0.0 for each in members] for members in questions.values()]
    metrics = evaluation_metrics(outcomes)
    return {
        "asked": len(tasks),
        "candidates_per_question": wanted,
        "candidates": graded,
        "parse_rate": (rate := (metrics["format_compliance"] or {}).get("value")),
        "parse_rate_wanted": WANTED_PARSE_RATE,
        "parse_rate_reached": None if rate is None else rate >= WANTED_PARSE_RATE,
        "questions_all_right": sum(right[name] == len(members) for name, members in questions.items()),
        "questions_none_right": sum(not number for number in right.values()),
        "questions_with_spread": sum(max(each) > min(each) for each in rewards),
        "distinct_share": sum(map(len, texts.values())) / graded if graded else None,
        "reward_mean": sum(map(sum, rewards)) / graded if graded else None,
        "reward_of_best_mean": sum(map(max, rewards)) / len(rewards) if rewards else None,
        "sampled_tokens": add_tokens(outcomes),
        "token_ids": token_ids and graded > 0,
        **metrics,
    }


async def _play(
    parts: Stage,
    settings: Settings,
    attempts: Sequence[Attempt],
    *,
    folder: RunFolder,
    writer: CandidateWriter,
    reporter: Reporter,
    stopper: Stopper,
) -> None:
    shown = EpisodeCount(reporter, "sample", len(attempts))

    async def listen(trajectory: Trajectory) -> None:
        await asyncio.wrap_future(folder.trajectory(trajectory, iteration=0))
        reporter.episode(trajectory, {"iteration": 0})
        for written in writer.add(trajectory_record(trajectory, token_ids=True)):
            await asyncio.wrap_future(written)
        shown.add(trajectory)

    with reporter.work(f"sampling of {len(attempts)} episodes", shown=False), stopper.keeping(parts.costs_money):
        await play_stream(
            parts.player(settings, temperature=settings.eval.temperature),
            _Once(iter(attempts)),
            concurrency=settings.pool.concurrency,
            on_trajectory=listen,
            stopping=lambda: stopper.requested,
            admits=parts.admits,
        )
    reporter.finish("sample")


class _Once:
    """A source of attempts that keeps no trajectories, because thousands of them with token ids need much memory."""

    def __init__(self, attempts: Iterator[Attempt]) -> None:
        self._attempts = attempts

    def next(self) -> Attempt | None:
        return next(self._attempts, None)

    def done(self, attempt: Attempt, trajectory: Trajectory) -> None:
        pass


def _attempts(environment: Environment, settings: Settings, writer: CandidateWriter) -> Iterator[Attempt]:
    """Yields the attempts to play, question by question, so that an interrupted run has complete questions."""
    for task in eval_tasks(environment, settings):
        for member in range(settings.eval.attempts):
            if not writer.is_played(task.id, member):
                again = "-again" * writer.tries(task.id, member)
                seed = derive(settings.train.seed, "sample", task.id, member)
                yield Attempt(id=f"sample/{task.id}/{member}{again}", task=task, member=member, seed=seed)


def _parameters(settings: Settings, target: str) -> dict[str, Any]:
    generation = settings.generation
    return {
        "target": target,
        "candidates": settings.eval.attempts,
        "temperature": settings.eval.temperature,
        "top_p": generation.top_p,
        "max_gen_tokens": generation.max_gen_tokens,
        "max_steps": generation.max_steps,
        "split": settings.data.eval_split,
        "limit": settings.eval.limit,
        "seed": settings.train.seed,
        "environment": settings.environment.name,
        "reward": reward_facts(settings),
    }


def _tell(report: dict[str, Any], policy: PolicyVersion, reporter: Reporter) -> None:
    rate = report["parse_rate"]
    if rate is not None and rate < WANTED_PARSE_RATE:
        reporter.line(
            f"Only {100 * rate:.0f} % of the candidates could be parsed, fewer than the "
            f"{100 * WANTED_PARSE_RATE:.0f} % that training needs: teach "
            f"{policy.model or report['target']} the format first (finqa sft)."
        )
    if report["candidates"] and report["questions_none_right"] == report["questions"]:
        reporter.line("No question has a right candidate: pairs of them would teach the format, not the answers.")


class CandidateWriter:
    """Writes candidates.jsonl and scores.jsonl. Attempts of unfinished questions are in the log of the run only.

    It continues the files of an interrupted run: questions whose candidates are all written are finished, and attempts
    in the log are not played again unless they ended in a fault.
    """

    def __init__(self, run: Path, wanted: int) -> None:
        """Opens the files of a run; `wanted` is the number of candidates per question.

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
        """Counts how often the attempt is in the log, faults included."""
        return self._tries[question, member]

    def is_played(self, question: str, member: int) -> bool:
        """Returns whether the attempt need not be played again."""
        return question in self._settled or member in self._open.get(question, {})

    def add(self, record: Record) -> Sequence[Future[None]]:
        """Adds an attempt as recorded in the log; after the last attempt of a question, writes the question.

        Returns:
            One future per file, done when the line is on disk, or with a StorageError; () if nothing is written.
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
    """Returns what was asked, once, and the texts, token ids and log-probabilities of each attempt by turn.

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
    """Returns the verdict on each attempt, in the order of `candidate_record`."""
    scores = []
    for attempt in attempts:
        outcome = read_outcome(attempt)
        verdict = {"correct": outcome.correct, "well_formed": outcome.well_formed, "answer": outcome.answer}
        scores.append({name: attempt[name] for name in _OF_SCORES} | verdict)
    return {"id": attempts[0]["task"]["id"], "scores": scores}


def joined(candidates: Record, scores: Record) -> Iterator[dict[str, Any]]:
    """Yields the attempts of one line of candidates.jsonl and one of scores.jsonl, as records of trajectories.jsonl.

    Raises:
        ValueError: The lines are not about the same attempts.
    """
    prompt, verdicts = candidates["prompt"], {score["id"]: score for score in scores["scores"]}
    if candidates["id"] != scores["id"] or {each["id"] for each in candidates["candidates"]} != set(verdicts):
        raise ValueError(
            f"candidates of {candidates['id']!r} and scores of {scores['id']!r} are not about the same attempts"
        )
    for candidate in candidates["candidates"]:
        shared = {"task": candidates["task"], "messages": prompt["messages"], "tools": prompt["tools"]}
        yield {**shared, **candidate, **verdicts[candidate["id"]]}


def read_log(run: Path) -> Iterator[dict[str, Any]]:
    """Yields the attempts in the log of a run; nothing if there is no log yet.

    Raises:
        DataError: A line is damaged or not an attempt.
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
    """Returns all text that the policy wrote in an attempt, turn after turn."""
    return "\n".join(str(turn["text"]) for turn in attempt["turns"])


def place(record: Record) -> tuple[str, int]:
    """Returns question and member of an attempt."""
    return str(record["task"]["id"]), int(record["member"])


def _is_fault(record: Record) -> bool:
    return Status(record["status"]).is_fault


def _settled(run: Path, wanted: int) -> set[str]:
    """Returns the questions that have all their candidates in both files."""
    full: list[set[str]] = []
    for name, part in ((CANDIDATES, "candidates"), (SCORES, "scores")):
        records = read_jsonl(run / name) if (run / name).exists() else ()
        full.append({str(record["id"]) for record in records if len(record[part]) == wanted})
    return full[0] & full[1]
