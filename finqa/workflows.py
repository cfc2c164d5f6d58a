"""The functions of `finqa`: the workflows of `finqa eval`, `train` and `sample` with their settings as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

from finqa.arguments import Arguments, Files, read_arguments
from finqa.calling import Call, Callbacks, OnEpisode, OnMessage, OnProgress, call, call_async
from finqa.keywords import EvaluateKeywords, SampleKeywords, TrainKeywords
from finqa.recordings import Run
from finqa.results import Evaluation, Samples, Training
from finqa_cli.errors import UsageError
from finqa_cli.evaluation import candidates
from finqa_cli.evaluation import evaluate as evaluation
from finqa_cli.evaluation.planned_evaluation import (
    PlannedEvaluation,
    check_faults,
    plan_evaluation,
    plan_resumption,
    target_settings,
)
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.settings.offered import (
    OF_EVAL,
    OF_PLAY,
    OF_TRAIN,
    QUICK_EVAL,
    QUICK_SAMPLE,
    QUICK_TRAIN,
    without_given,
)
from finqa_cli.training.rl import rl_run
from finqa_cli.wiring.command_settings import (
    check_command,
    fetch_run,
    limit_evaluation,
    run_path,
    stored_parameter,
    stored_settings,
)

_OWN = ("target", "resume", "fresh", "quick_test", "config", "settings", "on_episode", "on_progress", "on_message")
_OF_SAMPLE = ("num_candidates", "temperature", "top_p", "split", "limit")


def evaluate(
    target: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    fresh: bool = False,
    quick_test: bool = False,
    config: Files = (),
    settings: Mapping[str, Any] = MappingProxyType({}),
    on_episode: OnEpisode | None = None,
    on_progress: OnProgress | None = None,
    on_message: OnMessage | None = None,
    **keywords: Unpack[EvaluateKeywords],
) -> Evaluation:
    """Play every question of a split and return the accuracy with its 95 % interval, as `finqa eval` does.

    Args:
        target: A run, a checkpoint, a model folder or hub id, `embedded`, or `scripted` (the expert).
        resume: Evaluation to resume, with its settings: plays missing attempts and attempts that ended in faults.
        fresh: Start a new run, even if the same call started one in ./runs that did not finish.
        quick_test: A short run: 16 questions in 8 sandboxes, unless they are given.
        config: Settings files, or names of included settings files.
        settings: Any setting by its dotted path, such as `{"environment.options.grader": "strict"}`.
        on_episode: Called with each `Episode` once it is on disk.
        on_progress: Called with the `Progress` of a phase.
        on_message: Called with each line that the command prints to stderr.
        keywords: Any flag of `finqa eval`, such as `split="test"`, `limit=16`, `sandboxes=4`, `run_dir="runs/a"`.

    Raises:
        FinqaError: It failed; `remedy` contains the fix.
        InterruptedRun: Ctrl-C or a signal stopped it; the run can be resumed.
        ThresholdError: More episodes ended in faults than `pool.max_fault_share` allows.
    """
    read = partial(read_arguments, "evaluate", keywords, settings, config, offered=OF_EVAL, own=_OWN)
    callbacks = Callbacks(on_episode=on_episode, on_progress=on_progress, on_message=on_message)
    return call(lambda: _evaluation(read(), target, resume, fresh, quick_test), callbacks)


async def evaluate_async(
    target: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    fresh: bool = False,
    quick_test: bool = False,
    config: Files = (),
    settings: Mapping[str, Any] = MappingProxyType({}),
    on_episode: OnEpisode | None = None,
    on_progress: OnProgress | None = None,
    on_message: OnMessage | None = None,
    **keywords: Unpack[EvaluateKeywords],
) -> Evaluation:
    """Do what `evaluate` does in the running event loop; cancelling it leaves a run that can be resumed."""
    read = partial(read_arguments, "evaluate", keywords, settings, config, offered=OF_EVAL, own=_OWN)
    callbacks = Callbacks(on_episode=on_episode, on_progress=on_progress, on_message=on_message)
    return await call_async(lambda: _evaluation(read(), target, resume, fresh, quick_test), callbacks)


def train(
    *,
    resume: str | Path | None = None,
    quick_test: bool = False,
    config: Files = (),
    settings: Mapping[str, Any] = MappingProxyType({}),
    on_episode: OnEpisode | None = None,
    on_progress: OnProgress | None = None,
    on_message: OnMessage | None = None,
    **keywords: Unpack[TrainKeywords],
) -> Training:
    """Train a LoRA policy by reinforcement learning, as `finqa train` does; evaluates before and after.

    Args:
        resume: Run to resume from its newest checkpoint. Only `iterations`, `learner_processes`, `max_cost`,
            `max_tokens`, `run_mirror` and `cluster_address` can be changed.
        quick_test: A short run: 2 iterations of 4 groups, unless they are given.
        config: Settings files, or names of included settings files.
        settings: Any setting by its dotted path.
        on_episode: Called with each `Episode` once it is on disk, those of evaluations too.
        on_progress: Called with the `Progress` of a phase.
        on_message: Called with each line that the command prints to stderr.
        keywords: Any flag of `finqa train`, such as `model="embedded"`, `iterations=4`, `lr=1e-4`.

    Raises:
        FinqaError: It failed; `remedy` contains the fix.
        InterruptedRun: Ctrl-C or a signal stopped it; the run can be resumed.
    """
    read = partial(read_arguments, "train", keywords, settings, config, offered=OF_TRAIN, own=_OWN[1:])
    callbacks = Callbacks(on_episode=on_episode, on_progress=on_progress, on_message=on_message)
    return call(lambda: _training(read(), resume, quick_test), callbacks)


async def train_async(
    *,
    resume: str | Path | None = None,
    quick_test: bool = False,
    config: Files = (),
    settings: Mapping[str, Any] = MappingProxyType({}),
    on_episode: OnEpisode | None = None,
    on_progress: OnProgress | None = None,
    on_message: OnMessage | None = None,
    **keywords: Unpack[TrainKeywords],
) -> Training:
    """Do what `train` does in the running event loop; cancelling it leaves a run that can be resumed."""
    read = partial(read_arguments, "train", keywords, settings, config, offered=OF_TRAIN, own=_OWN[1:])
    callbacks = Callbacks(on_episode=on_episode, on_progress=on_progress, on_message=on_message)
    return await call_async(lambda: _training(read(), resume, quick_test), callbacks)


def sample(
    target: str | Path | None = None,
    *,
    num_candidates: int = 4,
    temperature: float = 0.8,
    top_p: float = 0.9,
    split: str = "",
    limit: int = 0,
    resume: str | Path | None = None,
    quick_test: bool = False,
    config: Files = (),
    settings: Mapping[str, Any] = MappingProxyType({}),
    on_episode: OnEpisode | None = None,
    on_progress: OnProgress | None = None,
    on_message: OnMessage | None = None,
    **keywords: Unpack[SampleKeywords],
) -> Samples:
    """Sample several candidates of each question with token ids and rewards, as `finqa sample` does.

    Args:
        target: A run, a checkpoint, a model folder or hub id, `embedded`, or an engine by name.
        num_candidates: Candidates per question.
        temperature: Sampling temperature.
        top_p: Nucleus sampling mass.
        split: Split of the questions; empty: the training split.
        limit: Number of questions; 0: all.
        resume: Interrupted run to resume: plays missing attempts and attempts that ended in faults.
        quick_test: Four candidates of 16 questions, unless another `limit` is given.
        config: Settings files, or names of included settings files.
        settings: Any setting by its dotted path, except those that are arguments of this function.
        on_episode: Called with each `Episode` once it is on disk.
        on_progress: Called with the `Progress` of a phase.
        on_message: Called with each line that the command prints to stderr.
        keywords: Any further flag of `finqa sample`.

    Raises:
        FinqaError: It failed; `remedy` contains the fix.
        InterruptedRun: Ctrl-C or a signal stopped it; the run can be resumed.
        ThresholdError: More attempts ended in faults than `pool.max_fault_share` allows.
    """
    own = (*_OWN, *_OF_SAMPLE)
    read = partial(read_arguments, "sample", keywords, settings, config, offered=OF_PLAY, own=own)
    wanted = {"candidates": num_candidates, "temperature": temperature, "top_p": top_p, "split": split, "limit": limit}
    callbacks = Callbacks(on_episode=on_episode, on_progress=on_progress, on_message=on_message)
    return call(lambda: _sampling(read(), target, resume, quick_test, wanted), callbacks)


async def sample_async(
    target: str | Path | None = None,
    *,
    num_candidates: int = 4,
    temperature: float = 0.8,
    top_p: float = 0.9,
    split: str = "",
    limit: int = 0,
    resume: str | Path | None = None,
    quick_test: bool = False,
    config: Files = (),
    settings: Mapping[str, Any] = MappingProxyType({}),
    on_episode: OnEpisode | None = None,
    on_progress: OnProgress | None = None,
    on_message: OnMessage | None = None,
    **keywords: Unpack[SampleKeywords],
) -> Samples:
    """Do what `sample` does in the running event loop; cancelling it leaves a run that can be resumed."""
    own = (*_OWN, *_OF_SAMPLE)
    read = partial(read_arguments, "sample", keywords, settings, config, offered=OF_PLAY, own=own)
    wanted = {"candidates": num_candidates, "temperature": temperature, "top_p": top_p, "split": split, "limit": limit}
    callbacks = Callbacks(on_episode=on_episode, on_progress=on_progress, on_message=on_message)
    return await call_async(lambda: _sampling(read(), target, resume, quick_test, wanted), callbacks)


def _evaluation(
    arguments: Arguments, target: str | Path | None, resume: str | Path | None, fresh: bool, quick_test: bool
) -> Call[Evaluation]:
    if resume is not None:
        run = Path(resume)
        _refuse_target(target, run, "evaluate")
        given = arguments.refuse(run)
        check_command(run, "eval")
        plan = plan_resumption(run, given)
    else:
        name, given = _target(target, "evaluate"), arguments.given
        implied = {**target_settings(given, name), **(without_given(QUICK_EVAL, given) if quick_test else {})}
        plan = plan_evaluation(arguments.load(implied, purpose="play").settings, name, fresh=fresh)
    begun = f"{plan.run} was started by the same call and is resumed; fresh=True starts a new run"
    return Call(
        start=partial(_evaluated, plan),
        remedy=plan.resume_command,
        notes=(begun,) if plan.resumes and resume is None else (),
    )


async def _evaluated(plan: PlannedEvaluation, reporter: Reporter, stopper: Stopper) -> Evaluation:
    result = await evaluation.evaluate(
        plan.settings, plan.target, plan.run, resume=plan.resumes, reporter=reporter, stopper=stopper
    )
    check_faults(result, plan.settings)
    report = result.report.to_dict()
    graded = report["episodes"] - report["faults"]
    low, high = report["accuracy_interval"]
    return Evaluation(
        target=plan.target,
        split=result.split,
        accuracy=report["accuracy"] if graded else None,
        interval=(low, high) if graded else None,
        n=graded,
        faults=report["faults"],
        report=report,
        run=Run(plan.run),
    )


def _training(arguments: Arguments, resume: str | Path | None, quick_test: bool) -> Call[Training]:
    if resume is not None:
        run = Path(resume)
        given = arguments.refuse(run)
        fetch_run(run, given)
        check_command(run, "train")
        stored = stored_settings(run, "train", given)
        chosen = rl_run.lengthen(stored, run, given.get("train.iterations"))
        notes: tuple[str, ...] = ()
    else:
        implied = without_given(QUICK_TRAIN, arguments.given) if quick_test else {}
        loaded, note = limit_evaluation(arguments.load(implied, purpose="train"))
        chosen = loaded.settings
        notes = tuple(filter(None, (rl_run.check_idle_options(loaded), note)))
        run = run_path(chosen)
    return Call(
        start=partial(_trained, chosen, run, resume is not None),
        remedy=f"finqa train --resume {run}",
        learner=chosen.learner.name,
        notes=notes,
    )


async def _trained(settings: Settings, run: Path, resumes: bool, reporter: Reporter, stopper: Stopper) -> Training:
    result = await rl_run.train(settings, run, resume=resumes, reporter=reporter, stopper=stopper)
    return Training(
        iterations=result.iterations,
        accuracy_before=result.before.get("accuracy"),
        accuracy_after=result.after.get("accuracy"),
        before=result.before,
        after=result.after,
        seconds=result.seconds,
        was_finished=result.was_finished,
        run=Run(run),
    )


def _sampling(
    arguments: Arguments,
    target: str | Path | None,
    resume: str | Path | None,
    quick_test: bool,
    wanted: Mapping[str, Any],
) -> Call[Samples]:
    if resume is not None:
        run = Path(resume)
        _refuse_target(target, run, "sample")
        given = arguments.refuse(run)
        check_command(run, "sample")
        chosen, name = stored_settings(run, "play", given), str(stored_parameter(run, "target", "sample"))
    else:
        name, given = _target(target, "sample"), arguments.given
        for path, flag in candidates.FLAGS.items():
            if f"settings[{path!r}]" in {written for _, written, _ in arguments.values}:
                argument = flag.removeprefix("--").replace("-", "_")
                raise UsageError(f"settings[{path!r}] has no effect here.", remedy=f"give {argument}=...")
        implied = {**target_settings(given, name), **(without_given(QUICK_SAMPLE, given) if quick_test else {})}
        loaded = arguments.load(implied, purpose="play").settings
        limit = wanted["limit"] or (candidates.QUICK["limit"] if quick_test else 0)
        split = wanted["split"] or loaded.data.train_split
        chosen = candidates.sampling_settings(loaded, **{**wanted, "split": split, "limit": limit})
        run = run_path(chosen, "sample_")
    return Call(start=partial(_sampled, chosen, name, run, resume is not None), remedy=f"finqa sample --resume {run}")


async def _sampled(
    settings: Settings, target: str, run: Path, resumes: bool, reporter: Reporter, stopper: Stopper
) -> Samples:
    result = await candidates.sample(settings, target, run, resume=resumes, reporter=reporter, stopper=stopper)
    candidates.check_candidates(result, settings)
    report = result.report
    return Samples(
        target=target,
        candidates=report["candidates"],
        questions=report["questions"],
        faults=report["faults"],
        report=report,
        seconds=result.seconds,
        candidates_path=run / candidates.CANDIDATES,
        scores_path=run / candidates.SCORES,
        run=Run(run),
    )


def _target(target: str | Path | None, function: str) -> str:
    if target is None:
        raise UsageError(
            f"finqa.{function} needs a policy, or a run to resume.",
            remedy=f"give a target, as in finqa.{function}('embedded')",
        )
    return str(target)


def _refuse_target(target: str | Path | None, run: Path, function: str) -> None:
    if target is not None:
        raise UsageError(
            f"A resumed run keeps its policy, so {str(target)!r} would have no effect.",
            remedy=f"leave it out, as in finqa.{function}(resume={str(run)!r})",
        )
