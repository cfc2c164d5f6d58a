"""What `finqa export` and `finqa push` are given: a run, one of its checkpoints, a model, or a verl trainer's tree.

A verl tree is `DIR/global_step_N/actor` with FSDP shards, `DIR/latest_checkpointed_iteration.txt` beside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.runs import checkpoints
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.policies import check_on_hub, of_checkpoint, resolve, run_of

_STEP = re.compile(r"global_step_(\d+)")
_ACTOR = "actor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One policy to hand on.

    Attributes:
        policy: As `policies.resolve` gives it; the model may be a folder of FSDP shards.
        name: Of the run or folder that it is of.
        step: Iteration or optimizer step; None where the folder has no steps.
        run: Our run that it is of, or None.
    """

    policy: PolicyVersion
    name: str
    step: int | None
    run: Path | None

    @property
    def title(self) -> str:
        """`<folder>_step-<N>`, or the folder alone."""
        return self.name if self.step is None else f"{self.name}_step-{self.step}"


def find_source(reference: str, step: int | None = None) -> Source:
    """One policy: of the given step, else the newest of a run or tree, else what the reference names.

    Raises:
        UsageError: A step of something that has none.
        DataError: There is no such step, it is damaged, or there is no checkpoint.
        ConfigError: The reference is neither run, checkpoint, adapter, model nor tree.
    """
    steps = steps_of(reference)
    if step is None and not steps:
        return _named(reference)
    if step is None:
        step = _newest(Path(reference), steps)
    elif not steps:
        raise UsageError(f"{reference} holds no checkpoints, so it has no step {step}.", remedy="leave out --step")
    if step not in steps:
        told = ", ".join(map(str, steps[-8:]))
        raise DataError(f"{reference} has no checkpoint of step {step}.", remedy=f"--step with one of: {told}")
    path = Path(reference)
    name = path.resolve().name
    if _is_tree(path):
        return Source(policy=_sharded(path / f"global_step_{step}"), name=name, step=step, run=None)
    try:
        checkpoint = checkpoints.verified(checkpoints.folder_of(path, step))
    except DataError as error:
        others = ", ".join(str(each) for each in steps if each != step)
        raise DataError(error.message, remedy=f"--step with one of: {others}" if others else f"ls {path}") from error
    return Source(policy=of_checkpoint(checkpoint), name=name, step=step, run=path)


def find_sources(reference: str, count: int) -> list[Source]:
    """The newest policies of a run or tree, oldest first; as many as there are, if they are fewer.

    Raises:
        UsageError: It has no checkpoints to count.
        DataError: One is damaged.
    """
    steps = steps_of(reference)
    if not steps:
        raise UsageError(f"{reference} holds no checkpoints to take the newest {count} of.", remedy="leave out --num")
    return [find_source(reference, step) for step in steps[-count:]]


def steps_of(reference: str) -> Sequence[int]:
    """The steps that a run or a verl tree has checkpoints of, oldest first; none for anything else."""
    path = Path(reference)
    if (path / "run.json").is_file():
        return checkpoints.iterations(path)
    return sorted(int(match[1]) for folder in _steps(path) if (match := _STEP.fullmatch(folder.name)))


def _newest(path: Path, steps: Sequence[int]) -> int:
    """Of our runs the newest that is whole; of a tree the one that its pointer names."""
    if not _is_tree(path):
        newest = checkpoints.latest(path)
        assert newest is not None, "there are steps"
        return newest.iteration
    pointer = path / checkpoints.LATEST
    try:
        return int(pointer.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return steps[-1]
    except (OSError, ValueError) as error:
        raise DataError(f"{pointer} does not name a step: {error}.", remedy=f"--step {steps[-1]}") from error


def _named(reference: str) -> Source:
    path = Path(reference)
    if _STEP.fullmatch(path.name) or (path.name == _ACTOR and _STEP.fullmatch(path.resolve().parent.name)):
        step_folder = path.resolve() if path.name != _ACTOR else path.resolve().parent
        match = _STEP.fullmatch(step_folder.name)
        assert match is not None
        return Source(policy=_sharded(step_folder), name=step_folder.parent.name, step=int(match[1]), run=None)
    if path.is_dir() and any(path.glob("model_world_size_*_rank_*.pt")):
        return Source(policy=PolicyVersion(number=0, model=str(path)), name=path.resolve().name, step=None, run=None)
    policy, run = resolve(reference), run_of(reference)
    if run is None:
        if policy.adapter is None:  # of an adapter nothing else is needed, unless it is merged
            check_on_hub(policy)
        return Source(policy=policy, name=path.resolve().name, step=None, run=None)
    step = int(path.name[5:]) if path.parent.name == "checkpoints" and path.name[5:].isdigit() else None
    named = run.name if step is not None or path.resolve() == run else f"{run.name}_{path.resolve().name}"
    return Source(policy=policy, name=named, step=step, run=run)


def _sharded(folder: Path) -> PolicyVersion:
    actor = folder / _ACTOR
    if not actor.is_dir():
        raise ConfigError(f"{folder} is no step of a verl trainer: it has no {_ACTOR} folder.")
    return PolicyVersion(number=0, model=str(actor))


def _is_tree(path: Path) -> bool:
    return not (path / "run.json").is_file() and bool(_steps(path))


def _steps(path: Path) -> list[Path]:
    return [folder for folder in path.glob("global_step_*") if folder.is_dir()] if path.is_dir() else []
