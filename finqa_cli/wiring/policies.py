"""From what a user types to a policy: a run, a checkpoint, an adapter, a model folder, a hub id, or a plugin's name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from finqa_cli.contracts import ChatEngine, Sleeper, TokenEngine
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.extend import registry
from finqa_cli.runs.checkpoints import Checkpoint, latest, verified
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.run_folder import read_settings
from finqa_cli.settings import Settings, from_public_dict, to_public_dict
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.hub_models import NAME_ANOTHER, check_on_hub

START = "start"
"""Folder of a run with the whole model that it began from, where that was made of an adapter; see `start_points`."""

START_RECORD = "start.json"
"""What it was made of, written once it is whole."""


def resolve(reference: str) -> PolicyVersion:
    """The policy behind a reference. Hub ids are taken as they are; `check_on_hub` asks whether they exist.

    Raises:
        DataError: A run without a checkpoint, or a damaged one.
        ConfigError: A folder that is neither run, checkpoint, adapter nor model.
    """
    policy: PolicyVersion | None = registry().hook.resolve_policy(reference=reference)
    if policy is not None:
        return policy
    path = Path(reference)
    if not path.exists():
        looks_local = reference.startswith((".", "/", "~", "runs/")) or reference.count("/") > 1
        if looks_local or ("/" in reference and path.parent.is_dir()):
            raise ConfigError(
                f"There is no model, run or checkpoint at {reference}.",
                remedy=NAME_ANOTHER,
            )
        return PolicyVersion(number=0, model=reference)
    if _is_pipeline(path):
        raise DataError(
            f"{path} is a pipeline, not a policy.",
            remedy=f"name the step that trained it, such as {path / '03_sft'}; ls {path}",
        )
    if (path / "run.json").exists():
        if (checkpoint := latest(path)) is not None:
            return of_checkpoint(checkpoint)
        if (path / "policy").is_dir():  # of supervised fine-tuning
            return resolve(str(path / "policy"))
        raise DataError(f"The run {path} holds no usable checkpoint and no policy.", remedy=f"ls {path}")
    if (path / "manifest.json").exists() and (path / "state.json").exists():
        return of_checkpoint(verified(path))
    if (path / "adapter_config.json").exists():
        return _adapter(path)
    if (path / "config.json").exists():
        return PolicyVersion(number=0, model=str(path))
    raise ConfigError(
        f"{path} is neither a run, a checkpoint, an adapter nor a model folder (it has no config.json).",
        remedy=NAME_ANOTHER,
    )


def resolve_for(engine: str, reference: str) -> PolicyVersion:
    """As `resolve`, for an engine: names on a server are taken as they are, other models must be here or on the hub.

    Raises:
        DataError: A run without a checkpoint, or a damaged one.
        ConfigError: A folder that is neither run, checkpoint, adapter nor model; or there is no such engine or model.
        AuthenticationError, ServiceUnavailableError: The hub refuses the model, or cannot be reached.
    """
    if registry().find("engine", engine).remote and not Path(reference).exists():
        return PolicyVersion(number=0, model=reference)
    policy = resolve(reference)
    check_on_hub(policy)
    return policy


def check_engine(engine: TokenEngine | ChatEngine, settings: Settings, policy: PolicyVersion, *, trains: bool) -> None:
    """Looks whether an engine can do what is asked of it, before anything is started.

    Raises:
        ConfigError: It is to train without token ids, to play an adapter that it would ignore, or to sleep during
            updates that overlap with rollouts.
    """
    name = settings.engine.name
    if isinstance(engine, TokenEngine):
        if trains and settings.train.max_staleness and isinstance(engine, Sleeper) and engine.sleeps:
            raise ConfigError(
                f"Engine {name!r} is to sleep during updates, but with train.max_staleness = "
                f"{settings.train.max_staleness} rollouts go on while the learner updates.",
                remedy="--max-staleness 0, or an engine that keeps its device",
            )
        return
    if trains:
        raise ConfigError(
            f"Engine {name!r} gives no token ids and log-probabilities, so it cannot train.",
            remedy="finqa train --engine transformers",
        )
    if policy.adapter is not None:
        raise ConfigError(
            f"Engine {name!r} cannot load the adapter {policy.adapter}.",
            remedy="--engine transformers, or have the server load it and give the name that it has there",
        )


def of_checkpoint(checkpoint: Checkpoint) -> PolicyVersion:
    """The policy that a training checkpoint holds.

    Raises:
        DataError, ConfigError: The model that its adapter is on is not there any more.
    """
    number = int(checkpoint.state["policy_version"])
    policy = checkpoint.path / "policy"
    if (policy / "config.json").exists():
        return PolicyVersion(number=number, model=str(policy))
    if _own_start(policy) is not None:
        return replace(_adapter(policy), number=number)
    base = resolve(str(checkpoint.state["model"]))
    if base.adapter is not None:  # a copy outside its run, which began from that adapter merged
        return replace(_adapter(policy), number=number)
    return PolicyVersion(number=number, model=base.model, adapter=policy)


def run_of(reference: str) -> Path | None:
    """The run folder that a reference lies in, if it lies in one."""
    path = Path(reference).resolve()
    candidates = (path, *path.parents[:2])
    found = next((folder for folder in candidates if (folder / "run.json").exists()), None)
    return None if found is None or _is_pipeline(found) else found


def settings_of(reference: str) -> dict[str, Any] | None:
    """The settings that a run or checkpoint was made with, complete, so that an evaluation can follow them.

    Raises:
        ConfigError: They are of another version of finqa.
    """
    run = run_of(reference)
    return to_public_dict(from_public_dict(read_settings(run))) if run is not None else None


def _is_pipeline(folder: Path) -> bool:
    """It is the folder around the runs of a pipeline, which is none itself."""
    return read_document(folder / "run.json").get("command") == "pipeline"


def _own_start(path: Path) -> str | None:
    """The merged model that the run around an adapter began from, wherever that run lies now."""
    run = next((folder for folder in path.resolve().parents[:4] if (folder / "run.json").is_file()), None)
    return str(run / START) if run is not None and (run / START_RECORD).is_file() else None


def _adapter(path: Path) -> PolicyVersion:
    if (start := _own_start(path)) is not None:
        return PolicyVersion(number=1, model=start, adapter=path)
    try:
        base = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path / 'adapter_config.json'} does not name its base model ({error!r}).") from error
    return PolicyVersion(number=1, model=resolve(str(base)).model, adapter=path)
