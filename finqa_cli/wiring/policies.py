"""Resolution of a user's reference to a policy: a run, a checkpoint, an adapter, or a model by folder, name or hub id.

Training starts from a whole model. If the policy is an adapter, it is first merged into its base, once, in the run's
folder. A new adapter is then trained on top of the whole model, and without that adapter the model is the reference of
KL terms and DPO. If the old adapter were dropped or trained further, the reference would differ from the start.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any

from finqa_cli.contracts import ChatEngine, TokenEngine
from finqa_cli.documents import parse_json
from finqa_cli.errors import AuthenticationError, ConfigError, DataError, ServiceUnavailableError
from finqa_cli.extend import registry
from finqa_cli.grading import JUDGES, versioned
from finqa_cli.local_models import KNOWN_MODELS, find_model
from finqa_cli.runs.checkpoints import Checkpoint, latest, verified
from finqa_cli.runs.durable_files import read_document, write_json
from finqa_cli.runs.links import enclosing_runs, located
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import SETTINGS, policy_inputs, read_run, read_settings
from finqa_cli.settings import Settings, from_public_dict, to_public_dict
from finqa_cli.settings.schema import EMBEDDED, is_embedded
from finqa_cli.types import PolicyVersion

NAME_ANOTHER = "give a run folder, a checkpoint, a model folder, a model of `finqa model get`, a hub id, or `embedded`"
_CONFIG = "config.json"

FINQA = "finqa"
"""The environment whose small policy is `embedded`, without a further name."""

START = "start"
"""Folder of a run with the whole model that it started from, if that was merged from an adapter; see `whole_model`."""

START_RECORD = "start.json"
"""Record of the adapter that was merged, written when the merged model is complete."""


def resolve(reference: str) -> PolicyVersion:
    """Return the policy of a reference. Hub ids are not checked; `check_on_hub` checks whether they exist.

    Raises:
        DataError: The reference is a run without a usable checkpoint, a damaged checkpoint, or a pipeline.
        ConfigError: It is a path that does not exist, a folder that is neither run, checkpoint, adapter nor model, or a
            known model that `finqa model get` has not brought yet.
    """
    policy: PolicyVersion | None = registry().first("resolve_policy", PolicyVersion, reference=reference)
    if policy is not None:
        return policy
    path = Path(reference)
    if not path.exists():
        if (got := _model_by_name(reference)) is not None:
            return got
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
            remedy=f"name the step that trained it, such as {path / '03_sft'}; ls {path} shows its steps",
        )
    if (path / "run.json").exists():
        if (checkpoint := latest(path)) is not None:
            return of_checkpoint(checkpoint)
        if (path / "policy").is_dir():  # final policy of supervised fine-tuning or DPO
            return resolve(str(path / "policy"))
        command = read_run(path).get("command")
        remedy = f"finqa {command} --resume {path}" if command in ("train", "sft", "dpo") else NAME_ANOTHER
        raise DataError(f"The run {path} has no usable checkpoint and no policy.", remedy=remedy)
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


def _model_by_name(reference: str) -> PolicyVersion | None:
    """Return the model with this name in FINQA_HOME; None for other references."""
    if (folder := find_model(reference)) is not None:
        return PolicyVersion(number=0, model=str(folder))
    if reference in KNOWN_MODELS:
        raise ConfigError(f"The model {reference} is not on this machine yet.", remedy=f"finqa model get {reference}")
    return None


def resolve_for(engine: str, reference: str) -> PolicyVersion:
    """Resolve a reference for an engine. Names on a server are not checked; other models must be here or on the hub.

    Raises:
        DataError, ConfigError: See `resolve`; ConfigError also if there is no such engine or model.
        AuthenticationError, ServiceUnavailableError: The hub refuses the model, or cannot be reached.
    """
    if registry().find("engine", engine).remote and not Path(reference).exists():
        return PolicyVersion(number=0, model=reference)
    policy = resolve(reference)
    check_on_hub(policy)
    return policy


def check_engine(engine: TokenEngine | ChatEngine, settings: Settings, policy: PolicyVersion, *, trains: bool) -> None:
    """Check, before anything is started, that an engine supports the settings and the policy.

    Raises:
        ConfigError: The engine returns no token ids, but is used for training; it cannot load the policy's adapter; or
            it must sleep during updates, but updates overlap with rollouts.
    """
    name = settings.engine.name
    if isinstance(engine, TokenEngine):
        if trains and settings.train.max_staleness and engine.sleeps:
            raise ConfigError(
                f"Engine {name!r} must sleep during updates, but with train.max_staleness = "
                f"{settings.train.max_staleness} rollouts continue while the learner updates.",
                remedy="--max-staleness 0, or an engine that keeps its device",
            )
        return
    if trains:
        raise ConfigError(
            f"Engine {name!r} returns no token ids and log-probabilities, so it cannot train.",
            remedy="--engine transformers",
        )
    if policy.adapter is not None:
        raise ConfigError(
            f"Engine {name!r} cannot load the adapter {policy.adapter}.",
            remedy="--engine transformers, or load it on the server and use its name there",
        )


def check_fit(settings: Settings, policy: PolicyVersion, *, trains: bool) -> None:
    """Refuse a small policy in an environment for which it was not trained: it has another vocabulary.

    If the environment has a small policy of its own, other small policies are only refused for training.

    Raises:
        ConfigError: The policy is a small policy for another environment.
    """
    name = settings.model.name
    if registry().find("engine", settings.engine.name).modelless or not is_embedded(name):
        return
    environment = registry().find("environment", settings.environment.name)
    own = environment.policy or (EMBEDDED if environment.name == FINQA else "")
    given: PolicyVersion | None = registry().first("resolve_policy", PolicyVersion, reference=name)
    if given is not None and given.model == policy.model and name != own and (trains or not own):
        remedy = "--engine scripted for its expert, if it has one, or name an instruction-tuned model"
        if trains:
            remedy = "--model MODEL with an instruction-tuned model" + (f", or --model {own}" if own else "")
        raise ConfigError(
            f"{name} is a small policy for another environment; it cannot play {environment.name}.",
            remedy=remedy,
        )


def check_cost_of_judge(settings: Settings) -> None:
    """Check that the cost of a training run whose answers a model judges has a limit.

    Raises:
        ConfigError: It has none.
    """
    judged = versioned(str(settings.environment.options.get("grader", ""))) in JUDGES
    if judged and settings.run.max_cost is None:
        raise ConfigError(
            "With the grader judge, training pays for a verdict on every answer that strict cannot read.",
            remedy="--max-cost DOLLARS, at which the run stops",
        )


def of_checkpoint(checkpoint: Checkpoint) -> PolicyVersion:
    """Return the policy of a training checkpoint.

    Raises:
        DataError, ConfigError: The base model of its adapter no longer exists.
    """
    number = int(checkpoint.state["policy_version"])
    policy = checkpoint.path / "policy"
    if (policy / "config.json").exists():
        return PolicyVersion(number=number, model=str(policy))
    if _own_start(policy) is not None:
        return replace(_adapter(policy), number=number)
    base = resolve(_base_name(policy, str(checkpoint.state["model"])))
    if base.adapter is not None:  # a copy outside its run, which started from this adapter, merged into its base
        return replace(_adapter(policy), number=number)
    return PolicyVersion(number=number, model=base.model, adapter=policy)


def run_of(reference: str) -> Path | None:
    """Return the run folder that contains a reference; None if there is none."""
    path = Path(reference).resolve()
    candidates = (path, *path.parents[:3])
    found = next((folder for folder in candidates if (folder / "run.json").exists()), None)
    return None if found is None or _is_pipeline(found) else found


def settings_of(reference: str) -> dict[str, Any] | None:
    """Return all settings of the run that made a policy, so that an evaluation can use them; None if it has none.

    They are those of the run that contains the policy, or those that a checkpoint or an export has in its folder.

    Raises:
        ConfigError: The settings are of another version of finqa.
        DataError: The settings are missing or damaged.
    """
    if (folder := run_of(reference)) is None:
        places = (Path(reference), Path(reference).parent)  # a checkpoint contains its policy
        folder = next((place for place in places if (place / SETTINGS).is_file() and _is_policy(place)), None)
    return to_public_dict(from_public_dict(read_settings(folder))) if folder is not None else None


def _is_policy(folder: Path) -> bool:
    """Whether a folder is a checkpoint, an adapter or a model."""
    return any((folder / name).is_file() for name in ("state.json", "adapter_config.json", _CONFIG))


def _is_pipeline(folder: Path) -> bool:
    """Whether a folder is that of a pipeline, which contains runs but has no policy itself."""
    return read_document(folder / "run.json").get("command") == "pipeline"


def _own_start(path: Path) -> str | None:
    """Return the merged model from which the run around an adapter started, even after a move; None without one."""
    run = next((folder for folder in path.resolve().parents[:4] if (folder / "run.json").is_file()), None)
    return str(run / START) if run is not None and (run / START_RECORD).is_file() else None


def _adapter(path: Path) -> PolicyVersion:
    if (start := _own_start(path)) is not None:
        return PolicyVersion(number=1, model=start, adapter=path)
    try:
        base = parse_json((path / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path / 'adapter_config.json'} does not name its base model ({error!r}).") from error
    return PolicyVersion(number=1, model=resolve(_base_name(path, str(base))).model, adapter=path)


def _base_name(path: Path, recorded: str) -> str:
    """Return the base model of an adapter, usable in this working directory."""
    if registry().first("resolve_policy", PolicyVersion, reference=recorded) is not None:
        return recorded
    run = next(enclosing_runs(path.resolve()), None)
    return recorded if run is None else located(run, recorded)


def check_on_hub(policy: PolicyVersion) -> None:
    """Check that a policy's model exists: as a folder, in the hub's cache, or by one request to the hub.

    Other HTTP errors of the hub are ignored, because the loader repeats its requests.

    Raises:
        ConfigError: There is no model of this name here or on the hub, or HF_HUB_OFFLINE forbids the request.
        AuthenticationError: The licence of the model must be accepted on the hub.
        ServiceUnavailableError: The hub cannot be reached.
    """
    model = policy.model
    if not model or Path(model).exists():
        return
    try:
        from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    except ImportError:  # the code that loads the model names the missing extra
        return
    engines = [part.name for part in registry().components("engine") if part.modelless]
    near = difflib.get_close_matches(model.casefold(), [EMBEDDED, *KNOWN_MODELS, *engines], n=1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    missing = f"There is no run, checkpoint or model {model!r} here{meant}"
    try:
        if isinstance(try_to_load_from_cache(model, _CONFIG), str):
            return
        get_hf_file_metadata(hf_hub_url(model, _CONFIG))
    except errors.GatedRepoError as error:
        raise AuthenticationError(
            f"The hub provides {model!r} only to users who accepted its licence.",
            remedy=f"accept it at {constants.ENDPOINT}/{model}, then: hf auth login",
        ) from error
    except (errors.HFValidationError, errors.RepositoryNotFoundError) as error:
        raise ConfigError(
            f"{missing}, and the hub has no model with this name that you can access.",
            remedy=f"{NAME_ANOTHER}; for a private one: hf auth login",
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ConfigError(
            f"{missing} or in the hub's cache, and HF_HUB_OFFLINE disables access to the hub.",
            remedy=f"{NAME_ANOTHER}; or unset HF_HUB_OFFLINE",
        ) from error
    except errors.HfHubHTTPError:
        return
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # of the client's HTTP library
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ServiceUnavailableError(
            f"{missing}, and {constants.ENDPOINT} cannot be reached for it: {reason}",
            remedy=f"{NAME_ANOTHER}; or check your network connection",
        ) from error


def find_start(reference: str, run: Path) -> PolicyVersion:
    """Return the policy that a run starts from, as version 0. If the run has already merged it, return the whole model.

    Changes nothing, so it may be called before the run's folder exists. If the policy is an adapter, its `model` has
    the tokenizer that the merged model will have.

    Raises:
        DataError: See `resolve`; or the merged model was changed since.
        ConfigError: See `resolve`.
        AuthenticationError, ServiceUnavailableError: The hub refuses the model, or cannot be reached.
    """
    recorded = read_document(run / START_RECORD)
    if not recorded:
        start = replace(resolve(reference), number=0)
        check_on_hub(start)
        return start
    merged = PolicyVersion(number=0, model=str((run / START).resolve()))
    if policy_inputs(merged)["sha256"] != recorded.get("sha256"):
        raise DataError(
            f"{merged.model}, the model from which {run} started, has changed.",
            remedy="start again with another --run-dir",
        )
    return merged


def whole_model(start: PolicyVersion, run: Path, reporter: Reporter) -> PolicyVersion:
    """Return the start as a whole model to train: the start itself, or its adapter merged in float32 into RUN/start.

    Args:
        start: Result of `find_start`.
        run: Folder of the run, which is open.
        reporter: Shows the merge.

    Raises:
        ConfigError: The adapter does not fit its base, or no plugin merges this kind of adapter.
        StorageError: The disk is full or not writable.
    """
    if start.adapter is None:
        return start
    folder = (run / START).resolve()
    reporter.line(f"Merging {start.adapter} into {start.model} as the start of the training: {folder}.")
    merged: PolicyVersion | None = registry().first("merge_policy", PolicyVersion, policy=start, folder=folder)
    if merged is None:
        raise ConfigError(
            f"Training starts from a complete model, and no plugin merges the adapter {start.adapter} into its base.",
            remedy="--model MODEL, with a whole model or an adapter of LoRA",
        )
    digest = policy_inputs(merged)["sha256"]
    write_json(run / START_RECORD, {"schema_version": 1, "merged": policy_inputs(start), "sha256": digest})
    return merged


def start_inputs(model: PolicyVersion, run: Path) -> dict[str, Any]:
    """Return the start of a run for its manifest: the policy that was named, and the digest of the merged model."""
    recorded = read_document(run / START_RECORD)
    return {**recorded["merged"], "merged_sha256": recorded["sha256"]} if recorded else policy_inputs(model)
