"""Files of a learner: adapters and models for engines, and its own state for resuming. No pickles."""

from __future__ import annotations

import contextlib
import copy
import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from finqa_cli.deletion import discard, remove
from finqa_cli.errors import ConfigError, StorageError
from finqa_cli.local_models import local_model
from finqa_plugins.learners.torch.distributed.sharding import shard_like

_SCHEMA_VERSION = 1
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
LARGEST_FILE = "5GB"
"""Largest file of a published model: safetensors copies the tensors of a file before it writes them."""

_ABOUT, _WEIGHTS, _OPTIMIZER = "learner.json", "trained.safetensors", "optimizer.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What must be equal for a saved state to be loaded. `base` is a fingerprint of the base model's weights."""

    base: str
    lora_rank: int
    lora_alpha: int
    lora_target_modules: tuple[str, ...]


def publish_adapter(model: Any, folder: Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
    """Writes the adapter (float32) and its configuration with PEFT's `save_pretrained`.

    PEFT adds an empty template of a model card, README.md; `finqa export` writes a card with content.

    Args:
        model: The model with its adapter.
        folder: Folder to write; replaced once everything is written.
        weights: Weights by name, if the model has only shards of them; else None.
    """
    with _replacing(folder) as temporary:
        model.save_pretrained(temporary, save_embedding_layers=False, state_dict=weights)


def publish_model(
    model: Any,
    source: str,
    folder: Path,
    weights: Mapping[str, torch.Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Writes the whole model and the tokenizer of the model that it came from.

    Args:
        model: The model.
        source: Folder or hub id that has the tokenizer.
        folder: Folder to write; replaced once everything is written. Weights are in files of at most `LARGEST_FILE`,
            with an index if there are several.
        weights: Weights by name, if they differ from those in the model; else None.
        dtype: Precision of `weights`, which `config.json` names; None: that of the model.
    """
    from transformers import AutoTokenizer

    with _replacing(folder) as temporary:
        model.save_pretrained(temporary, state_dict=weights, max_shard_size=LARGEST_FILE)
        if dtype is not None:
            config = copy.deepcopy(model.config)
            config.dtype = dtype
            config.save_pretrained(temporary)
        AutoTokenizer.from_pretrained(local_model(source)).save_pretrained(temporary)


def moments(trained: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's moments by name, `MOMENT.WEIGHT`; empty before the first step."""
    return {
        f"{moment}.{name}": optimizer.state[parameter][moment]
        for name, parameter in trained.items()
        if parameter in optimizer.state
        for moment in MOMENTS
    }


def save(
    folder: Path,
    identity: Identity,
    step: int,
    weights: dict[str, torch.Tensor],
    optimizer_moments: dict[str, torch.Tensor],
) -> None:
    """Writes the learner's state into `folder`, with full tensors for any number of processes.

    Raises:
        StorageError: The disk is full or is not writable.
    """
    about = {"schema_version": _SCHEMA_VERSION, "step": step, "identity": asdict(identity)}
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / _WEIGHTS)
        save_file(optimizer_moments, folder / _OPTIMIZER)
        (folder / _ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def load(
    folder: Path, identity: Identity, trained: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> int:
    """Restores weights and moments and returns the step number. Nothing is changed unless all of it fits.

    Raises:
        ConfigError: The state has another identity, or a file is missing or damaged.
    """
    step = _check_identity(folder, identity)
    try:
        weights, saved = load_file(folder / _WEIGHTS), load_file(folder / _OPTIMIZER)
    except (OSError, SafetensorError) as error:
        raise damaged(folder, str(error)) from error
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    if shapes != {name: tuple(parameter.shape) for name, parameter in trained.items()}:
        raise damaged(folder, f"{_WEIGHTS} does not contain the trained weights")
    expected = {f"{moment}.{name}" for name in trained for moment in MOMENTS} if step else set()
    if set(saved) != expected:
        raise damaged(folder, f"{_OPTIMIZER} does not contain the moments of the trained weights")
    state = {
        index: {moment: _fitting(saved[f"{moment}.{name}"], parameter) for moment in MOMENTS}
        for index, (name, parameter) in enumerate(trained.items())
        if step
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(shard_like(weights[name], parameter))
    return step


def _fitting(saved: torch.Tensor, parameter: torch.nn.Parameter) -> torch.Tensor:
    """A moment, sharded like its parameter; the step number, which has another shape, is unchanged."""
    return shard_like(saved, parameter) if saved.shape == parameter.shape else saved


def _check_identity(folder: Path, identity: Identity) -> int:
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        saved, step, version = dict(about["identity"]), int(about["step"]), about["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(folder, f"{_ABOUT}: {type(error).__name__}: {error}") from error
    if version != _SCHEMA_VERSION:
        raise damaged(folder, f"it has schema version {version}, this finqa reads {_SCHEMA_VERSION}")
    for field, here in json.loads(json.dumps(asdict(identity))).items():
        if saved.get(field) != here:
            what = "base model" if field == "base" else field
            raise ConfigError(
                f"Learner state {str(folder)!r} belongs to another {what}: {saved.get(field)} there, {here} here.",
                remedy=f"{_aside(folder, 'other')}; or put back the base model and the settings that it was saved with",
            )
    return step


def damaged(folder: Path, reason: str) -> ConfigError:
    """The error for a saved state that cannot be loaded."""
    return ConfigError(f"Learner state {str(folder)!r} cannot be loaded: {reason}", remedy=_aside(folder, "damaged"))


def _aside(folder: Path, name: str) -> str:
    """Return the remedy: move the checkpoint of a state aside, and resume from an earlier one."""
    checkpoint = folder.parent
    return shlex.join(("mv", str(checkpoint), f"{checkpoint}.{name}")) + ", and resume from an earlier checkpoint"


@contextlib.contextmanager
def storing(path: Path) -> Iterator[None]:
    """Converts errors of writing a file or folder into an error that names it.

    Raises:
        StorageError: The disk is full or is not writable.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise StorageError(
            f"Writing {str(path)!r} failed: {error}", remedy="free space, or choose --run-dir"
        ) from error


@contextlib.contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder next to `folder`, which replaces it if the block succeeds and is deleted otherwise."""
    with storing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            yield temporary
            temporary.chmod(0o755)
            remove(folder)
            temporary.replace(folder)
        finally:
            discard(temporary)
