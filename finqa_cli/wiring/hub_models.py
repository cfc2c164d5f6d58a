"""Is a name that is no folder a model on the Hugging Face hub? One request: loaders ask for each file, for a minute."""

from __future__ import annotations

from pathlib import Path

from finqa_cli.errors import AuthenticationError, ConfigError, ServiceUnavailableError
from finqa_cli.types import PolicyVersion

NAME_ANOTHER = "give a run folder, a checkpoint, a model folder, a hub id, or `embedded`"
_CONFIG = "config.json"


def check_on_hub(policy: PolicyVersion) -> None:
    """Looks for a policy's model: folder, the hub's cache, then one request. A hub that is busy is left to the loader.

    Raises:
        ConfigError: Neither here nor on the hub is a model of that name, or HF_HUB_OFFLINE forbids asking.
        AuthenticationError: The hub wants its licence accepted.
        ServiceUnavailableError: The hub cannot be reached.
    """
    model = policy.model
    if not model or Path(model).exists():
        return
    try:
        from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    except ImportError:  # whoever loads the model says which extra is missing
        return
    missing = f"There is no run, checkpoint or model {model!r} here"
    try:
        if isinstance(try_to_load_from_cache(model, _CONFIG), str):
            return
        get_hf_file_metadata(hf_hub_url(model, _CONFIG))
    except errors.GatedRepoError as error:
        raise AuthenticationError(
            f"The hub gives {model!r} only to those who accepted its licence.",
            remedy=f"accept it at {constants.ENDPOINT}/{model}, then: hf auth login",
        ) from error
    except (errors.HFValidationError, errors.RepositoryNotFoundError) as error:
        raise ConfigError(
            f"{missing}, and the hub has none of that name that it shows you.",
            remedy=f"{NAME_ANOTHER}; for a private one: hf auth login",
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ConfigError(
            f"{missing} or in the hub's cache, and HF_HUB_OFFLINE forbids asking the hub.",
            remedy=f"{NAME_ANOTHER}; or unset HF_HUB_OFFLINE",
        ) from error
    except errors.HfHubHTTPError:
        return
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # of the client's HTTP library
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ServiceUnavailableError(
            f"{missing}, and {constants.ENDPOINT} cannot be asked for it: {reason}",
            remedy=f"{NAME_ANOTHER}; or look at your connection",
        ) from error
