"""Supervised fine-tuning on recorded demonstrations, from a given policy or from nothing."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.runs import checkpoints
from finqa_cli.runs.durable_files import new_folder, sha256_of, write_json
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.new_runs import training_run
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.step_manifest import policy_inputs, write_manifest
from finqa_cli.runs.tracking import Tracking
from finqa_cli.runs.trajectory_records import Demonstration, demonstrations_file
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.training.guarded_splits import guard_demonstrations
from finqa_cli.training.kept_policies import best_policy, final_policy
from finqa_cli.training.running_learner import fit_memory, learning
from finqa_cli.training.schedules import over_steps
from finqa_cli.training.sft.demonstrations import (
    ImitationSet,
    choose_demonstrations,
    imitation_set,
    imitation_steps,
    texts_of,
)
from finqa_cli.training.sft.played_samples import SAMPLES, asking, choose_questions
from finqa_cli.training.sft.sft_loop import SupervisedTraining, Validation
from finqa_cli.training.start_points import find_start, start_inputs, whole_model
from finqa_cli.types import PolicyVersion, Task
from finqa_cli.wiring.build import make_codec, make_trackers

WANTED_PARSE_RATE = 0.9
"""Share of answers of the right form that reinforcement learning should begin with: seed 002's gate after step 03."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """What is to be imitated, beside the settings.

    Attributes:
        sources: Run folders or trajectory files.
        init: Specification of a model that is made anew and trained whole; None trains the settings' model.
        most: At most so many demonstrations; 0 takes all.
    """

    sources: tuple[Path, ...]
    init: Path | None = None
    most: int = 0

    def to_parameters(self) -> dict[str, Any]:
        """As the manifest has it."""
        init = str(self.init) if self.init else None
        return {"demonstrations": [str(path) for path in self.sources], "init": init, "most_demonstrations": self.most}

    @classmethod
    def from_parameters(cls, stored: Mapping[str, Any]) -> Imitation:
        """Back from there."""
        init = Path(stored["init"]) if stored["init"] else None
        sources = tuple(Path(path) for path in stored["demonstrations"])
        return cls(sources=sources, init=init, most=int(stored["most_demonstrations"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SftResult:
    """`policy` is the folder of the last model or adapter, `best` of the one with the lowest loss on what is held out.

    Losses are nats per demonstrated token. `before`, `after` and `best_step` are of held-out companies; the parse rate
    is of the last policy's answers to held-out questions, and `parse_rate_reached` whether it is 90 %. Each is None
    where it was not measured.
    """

    run: Path
    policy: Path
    best: Path | None
    best_step: int | None
    steps: int
    demonstrations: int
    held_out: int
    tokens: int
    loss: float
    before: Validation | None
    after: Validation | None
    validation_loss: float | None
    parse_rate: float | None
    parse_rate_reached: bool | None
    seconds: float


async def sft(
    settings: Settings, wanted: Imitation, run: Path, *, resume: bool, reporter: Reporter, stopper: Stopper
) -> SftResult:
    """Trains on demonstrations and validates on companies that are held out.

    Args:
        settings: What is trained, and the environment whose held-out questions the policy is asked meanwhile.
        wanted: The demonstrations, and whether a model is made of them first.
        run: A new folder, or with `resume` that of an interrupted run.
        resume: Go on after the newest checkpoint.
        reporter: Told of progress.
        stopper: Asked whether to go on.

    Raises:
        DataError: There are no usable demonstrations, a record is malformed, or they solve evaluation tasks.
        ConfigError: Settings do not fit, the specification is unreadable, no plugin knows its family, or demonstrations
            or model are no longer those that the run began with.
        FinqaError: A loss was not finite.
        ThresholdError: Too many answers to held-out questions ended in faults.
        InterruptedRun: A signal stopped it; `--resume` goes on after the newest checkpoint.
    """
    started = time.perf_counter()
    kept = choose_demonstrations(settings, wanted.sources, most=wanted.most)
    guard_demonstrations(settings, wanted.sources, {item.id for item in kept}, reporter)
    checkpoint = checkpoints.latest(run) if resume else None
    start = None if wanted.init else await asyncio.to_thread(find_start, settings.model.name, run)
    parameters = _parameters(settings, wanted)
    with training_run(run, checkpoint, command="sft", settings=settings, resume=resume) as folder:
        tracking = Tracking(folder, make_trackers(settings, run), reporter)
        model = _create(wanted.init, kept, run, settings.train.seed) if start is None else start
        model = await asyncio.to_thread(whole_model, model, run, reporter)
        data = imitation_set(kept, settings, make_codec(settings, model.model))
        questions = choose_questions(settings, data.companies, reporter)
        reporter.line(f"{len(data.train)} demonstrations to train on, {len(data.held_out)} to validate.")
        inputs = await asyncio.to_thread(_inputs, wanted, model, run)
        folder.pin("demonstrations digest", _digest(inputs["demonstrations"]))
        folder.pin("policy digest", inputs["policy"]["sha256"] or model.model)
        write_manifest(run, "sft", parameters=parameters, inputs=inputs)
        training, steps = await _train(
            _trained_whole(settings) if wanted.init else settings,
            model,
            data,
            questions,
            checkpoint,
            folder,
            tracking,
            reporter,
            stopper,
        )
        result = _result(run, data, training, steps, time.perf_counter() - started)
        write_json(run / "report.json", document(result))
        await asyncio.to_thread(
            write_manifest, run, "sft", parameters=parameters, inputs=inputs, outputs=_outputs(result)
        )
        folder.finish("completed")
    _tell(result, reporter)
    return result


def document(result: SftResult) -> dict[str, Any]:
    """The `--json` form."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(result).items()}


async def _train(
    settings: Settings,
    model: PolicyVersion,
    data: ImitationSet,
    tasks: Sequence[Task],
    checkpoint: checkpoints.Checkpoint | None,
    folder: RunFolder,
    tracking: Tracking,
    reporter: Reporter,
    stopper: Stopper,
) -> tuple[SupervisedTraining, int]:
    plan = imitation_steps(data.train, settings)
    settings = fit_memory(_scheduled(settings, len(plan)), folder.path)
    resume = f"finqa sft --resume {folder.path}"
    async with learning(settings, model.model, folder, reporter, resume=resume) as learner:
        done = 0
        if checkpoint is not None:
            await asyncio.to_thread(learner.load, checkpoint.path / "learner")
            done = checkpoint.iteration
        async with asking(tasks, settings, model, folder, reporter, stopper) as questions:
            training = SupervisedTraining(learner, settings, folder, tracking, questions, reporter, stopper)
            if checkpoint is not None:
                training.restore(checkpoint.state)
            with tracking.run(to_public_dict(settings)):
                taken = await training.run(plan, data.held_out, done=done)
                stopper.check(resume)
        await asyncio.to_thread(learner.publish, final_policy(folder.path), taken)
    return training, taken


def _trained_whole(settings: Settings) -> Settings:
    """A model made from nothing has nothing that an adapter could lie on."""
    return settings.model_copy(update={"lora": settings.lora.model_copy(update={"rank": 0})})


def _scheduled(settings: Settings, steps: int) -> Settings:
    """The settings with the schedule that fits the plan, and the rate of imitation."""
    planned = over_steps(settings, "cosine", warmup_share=settings.sft.warmup_share, steps=steps)
    rate = settings.train.model_copy(update={"learning_rate": settings.sft.learning_rate})
    return planned.model_copy(update={"train": rate})


def _create(specification: Path | None, demonstrations: Sequence[Demonstration], run: Path, seed: int) -> PolicyVersion:
    """Model and tokenizer in RUN/init, made once: a resumed run finds them."""
    assert specification is not None
    target = (run / "init").resolve()
    made = PolicyVersion(number=0, model=str(target))
    if target.is_dir():
        return made
    if not specification.is_file():
        raise ConfigError(f"There is no model specification at {specification}.", remedy="finqa config list")
    with new_folder(target) as folder:
        policy: PolicyVersion | None = registry().hook.create_policy(
            specification=specification, texts=texts_of(demonstrations), folder=folder, seed=seed
        )
        if policy is None:
            raise ConfigError(
                f"No plugin makes a model from the specification {specification}.", remedy="finqa plugins"
            )
    return made


def _parameters(settings: Settings, wanted: Imitation) -> dict[str, Any]:
    """What the trained policy and its validation depend on."""
    public = to_public_dict(settings)
    sections = ("sft", "lora", "learner", "codec", "environment", "reward", "generation")
    return {
        **wanted.to_parameters(),
        "model": None if wanted.init else settings.model.name,
        "split": settings.data.eval_split,
        "seed": settings.train.seed,
        "max_grad_norm": settings.train.max_grad_norm,
        **{section: public[section] for section in sections},
    }


def _inputs(wanted: Imitation, model: PolicyVersion, run: Path) -> dict[str, Any]:
    files = [demonstrations_file(source) for source in wanted.sources]
    inputs: dict[str, Any] = {"demonstrations": [{"path": str(path), "sha256": sha256_of(path)} for path in files]}
    if wanted.init is None:
        return {**inputs, "policy": start_inputs(model, run)}
    specification = {"path": str(wanted.init), "sha256": sha256_of(wanted.init)}
    return {**inputs, "specification": specification, "policy": policy_inputs(model)}


def _digest(files: Sequence[Mapping[str, str]]) -> str:
    return hashlib.sha256("".join(file["sha256"] for file in files).encode()).hexdigest()


def _result(run: Path, data: ImitationSet, training: SupervisedTraining, steps: int, seconds: float) -> SftResult:
    after, best = training.after, training.best
    rate = after.samples.parse_rate if after and after.samples else None
    metrics = read_jsonl(run / "metrics.jsonl")
    return SftResult(
        run=run,
        policy=final_policy(run),
        best=best_policy(run) if best else None,
        best_step=best.step if best else None,
        steps=steps,
        demonstrations=len(data.train),
        held_out=len(data.held_out),
        tokens=sum(record["tokens"] for record in metrics if record["kind"] == "sft"),
        loss=training.loss,
        before=training.before,
        after=after,
        validation_loss=after.loss if after else None,
        parse_rate=rate,
        parse_rate_reached=None if rate is None else rate >= WANTED_PARSE_RATE,
        seconds=seconds,
    )


def _outputs(result: SftResult) -> list[Path]:
    files = [result.run / name for name in ("report.json", "metrics.jsonl")]
    folders = [result.policy, *([result.best] if result.best else []), result.run / SAMPLES]
    return files + [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]


def _tell(result: SftResult, reporter: Reporter) -> None:
    if result.parse_rate is not None and not result.parse_rate_reached:
        reporter.line(
            f"Only {100 * result.parse_rate:.0f} % of the answers have the right form, fewer than the "
            f"{100 * WANTED_PARSE_RATE:.0f} % that reinforcement learning should begin with: see "
            f"{result.run / SAMPLES}, and train longer (--epochs) or on more."
        )
