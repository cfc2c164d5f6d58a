"""Downloads whole models from the Hugging Face hub, with its own client.

A run downloads in this process alone, once: it has the user's token and proxy, shows progress and checks the disk.
Servers of engines have none of these, and get a folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.deletion import discard
from finqa_cli.errors import (
    AuthenticationError,
    ConfigError,
    MissingDependencyError,
    ServiceUnavailableError,
    StorageError,
)
from finqa_cli.local_models import cached_model
from finqa_cli.runs.reporter import Reporter

_WANTED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.md", "LICENSE*", "NOTICE*")
"""Files of a model folder; other forms of the same weights are left out."""

_PICKLED = "pytorch_model*.bin"
"""Weights of older models, which are used by a run if there are none in safetensors."""

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A model of the hub on this machine.

    Attributes:
        repository: Its hub id.
        revision: Commit.
        licence: What its card announces; empty if it announces none.
        folder: The folder with its files.
        fetched: Bytes were downloaded.
    """

    repository: str
    revision: str
    licence: str
    folder: Path
    fetched: bool


def bring_model(reference: str, reporter: Reporter) -> None:
    """Download the model of a hub id into the hub's cache, unless it is there; nothing for folders and no model.

    Raises:
        FinqaError: See `fetch_snapshot`.
    """
    if reference and not Path(reference).exists() and cached_model(reference) is None:
        fetch_snapshot(reference, reporter, pickled=True)


def fetch_snapshot(repository: str, reporter: Reporter, *, into: Path | None = None, pickled: bool = False) -> Snapshot:
    """Download the files of a model, and show its licence and size before.

    Args:
        repository: Hub id.
        reporter: Receives each step, and each file.
        into: Folder for the files; None: the hub's cache, where what is there already is not downloaded again.
        pickled: Accept weights in PyTorch's own format from a model that has no others.

    Raises:
        ConfigError: The hub has no such model with weights in safetensors, or HF_HUB_OFFLINE forbids the request.
        AuthenticationError: Its licence must be accepted on the hub, or it is private.
        ServiceUnavailableError: The hub cannot be reached.
        StorageError: There is too little space.
        MissingDependencyError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
    except ImportError as error:
        raise MissingDependencyError(
            "This needs huggingface_hub, which is not installed.", remedy="pip install 'finqa[data]'"
        ) from error
    with _explained(repository):
        info = HfApi().model_info(repository, files_metadata=True, timeout=_TIMEOUT_S)
        sizes = _wanted_files(info, pickled)
        card: Any = info.card_data or {}
        licence = str(card.get("license") or "")
        total = sum(sizes.values())
        reporter.line(f"{repository}: licence {licence or 'not stated on its card'}, {total / 1e9:.2g} GB")
        if not any(name.endswith((".safetensors", ".bin")) for name in sizes):
            raise ConfigError(
                f"{repository} has no weights in safetensors on the hub.",
                remedy="finqa model get FILE.gguf, if it has a GGUF file, or another model",
            )
        cached = into is None
        lacking = {
            name: size
            for name, size in sizes.items()
            if not cached or not isinstance(try_to_load_from_cache(repository, name, revision=info.sha), str)
        }
        _check_space(into or Path(constants.HF_HUB_CACHE), sum(lacking.values()))
        done = total - sum(lacking.values())
        reporter.start("download", max(1, total // 1000))
        try:
            for name in sizes:
                reporter.advance("download", done // 1000, now=name)
                path = hf_hub_download(repository, name, revision=info.sha, local_dir=into)
                done += lacking.get(name, 0)
            reporter.advance("download", done // 1000)
        finally:
            reporter.finish("download")
    if into is not None:
        discard(into / ".cache")
    folder = into or Path(path).parents[len(Path(name).parents) - 1]
    if into is None:  # the files were asked for by commit: without this, `main` would be unknown offline
        reference = folder.parents[1] / "refs" / "main"
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(str(info.sha), encoding="ascii")
    return Snapshot(
        repository=repository, revision=str(info.sha), licence=licence, folder=folder, fetched=bool(lacking)
    )


def _wanted_files(info: Any, pickled: bool) -> dict[str, int]:
    """Return size by name of the files at the top of the repository; deeper ones are other forms of the model."""
    top = {file.rfilename: int(file.size or 0) for file in info.siblings or () if "/" not in file.rfilename}
    safe = any(name.endswith(".safetensors") for name in top)
    wanted = _WANTED if safe or not pickled else (*_WANTED, _PICKLED)
    return {name: size for name, size in top.items() if any(Path(name).match(pattern) for pattern in wanted)}


def _check_space(folder: Path, needed: int) -> None:
    place = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise StorageError(
            f"{place} has {free / 1e9:.2f} GB free, but {needed / 1e9:.2f} GB are needed.",
            remedy="free some space, or export HF_HOME=/a/folder/with/space",
        )


@contextmanager
def _explained(repository: str) -> Iterator[None]:
    """Turn the errors of the hub's client into ours."""
    from huggingface_hub import constants, errors
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # not in its stubs
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    except errors.GatedRepoError as error:
        raise AuthenticationError(
            f"The hub provides {repository!r} only to users who accepted its licence.",
            remedy=f"accept it at {constants.ENDPOINT}/{repository}, then: hf auth login",
        ) from error
    except (errors.HFValidationError, errors.RepositoryNotFoundError) as error:
        raise ConfigError(
            f"The hub has no model {repository!r} that you can access.",
            remedy="finqa model get OWNER/NAME, with the id on its page; for a private one: hf auth login",
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ConfigError(
            "HF_HUB_OFFLINE disables access to the hub.", remedy="unset HF_HUB_OFFLINE, then the same command again"
        ) from error
    except (errors.HfHubHTTPError, errors.HTTPError, ConnectionError, TimeoutError) as error:  # type: ignore[attr-defined]
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ServiceUnavailableError(
            f"{constants.ENDPOINT} cannot be reached for {repository}: {reason}",
            remedy="check the network, or set HF_ENDPOINT to a mirror, then the same command again: it continues",
        ) from error
    except OSError as error:
        raise StorageError(f"Cannot write the files of {repository}: {error.strerror or error}.") from error
    finally:
        if shown:
            enable_progress_bars()
