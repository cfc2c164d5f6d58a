"""Describes the architecture of a model from its config.json alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finqa_cli.documents import parse_json
from finqa_cli.errors import AuthenticationError, ConfigError, ServiceUnavailableError
from finqa_cli.local_models import local_model
from finqa_cli.placement.known_models import architecture_of, is_spelled_out
from finqa_cli.types import Architecture
from finqa_plugins.learners.torch.config import MOST_LAYERS

_MODEL_REMEDY = "name a model folder, or a hub id of a model with a config.json"


def inspect(reference: str) -> Architecture:
    """Describes the architecture of a model folder or hub id.

    Configurations of common families that are complete are read as they are; for others, transformers builds the
    model without weights, which takes seconds of imports.

    Raises:
        ConfigError: There is no such model, its config.json is broken, or transformers does not know the architecture
            as a causal language model.
        AuthenticationError: The hub requires a key, or that the licence is accepted.
        ServiceUnavailableError: The hub cannot be reached.
    """
    folder = Path(local_model(reference))
    folder = folder if folder.is_dir() else _fetch_config(reference).parent
    config = _read_config(folder, reference)
    if is_spelled_out(config):
        found = architecture_of(config)
        if found is not None and found.layers <= MOST_LAYERS:
            return found
    from finqa_plugins.learners.torch.meta_model import build_and_describe  # torch and transformers: seconds

    return build_and_describe(folder, config["model_type"], reference)


def _fetch_config(reference: str) -> Path:
    """config.json of a hub id, from the hub or its cache."""
    from huggingface_hub import constants, errors, hf_hub_download

    try:
        return Path(hf_hub_download(reference, "config.json"))
    except errors.GatedRepoError as error:
        raise AuthenticationError(
            f"The hub provides {reference!r} only to users who accepted its licence.",
            remedy=f"accept it at {constants.ENDPOINT}/{reference}, then: hf auth login",
        ) from error
    except (errors.HFValidationError, errors.RepositoryNotFoundError, errors.RemoteEntryNotFoundError) as error:
        raise ConfigError(
            f"{reference!r} is no model folder, and the hub has no model of that name with a config.json.",
            remedy=_MODEL_REMEDY,
        ) from error
    except (errors.HfHubHTTPError, OSError) as error:
        reason = str(error.__cause__ or error).strip().split("\n")[0]
        raise ServiceUnavailableError(
            f"{constants.ENDPOINT} cannot be asked for {reference!r}: {reason}",
            remedy="check your network connection, or give a model folder",
        ) from error


def _read_config(folder: Path, reference: str) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        raw = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", remedy="copy the model's config.json again") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("model_type"), str):
        raise ConfigError(f"{path} names no model_type.", remedy="copy the model's config.json again")
    return raw
