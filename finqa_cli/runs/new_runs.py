"""Run folders: a new one is gone again when a mistake of the user's ended the run before it recorded anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.runs import checkpoints
from finqa_cli.runs.checkpoints import Checkpoint
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.runs.step_manifest import MANIFEST

_WRITTEN_FIRST = {".lock", "run.json", "settings.json", MANIFEST}
_EVENTS, _BEFORE_PLAY = "events.jsonl", {"run_start", "run_end", "pool", "sandbox_ready", "sandbox_failed"}


@contextmanager
def new_run(path: Path, *, command: str, settings: Settings) -> Iterator[RunFolder]:
    """As `RunFolder.create`, for the length of the block.

    A setting, model or data file that proves wrong before the first record leaves nothing behind, so that the same
    command can be given again once it is mended. Other failures keep the folder, for they may be gone on with.

    Raises:
        ConfigError: There is something in the folder already, or another process holds it.
    """
    existed = path.is_dir()
    facts = to_public_dict(settings)
    folder = RunFolder.create(path, command=command, settings=facts, save_token_ids=settings.run.save_token_ids)
    try:
        with folder:
            yield folder
    except (UsageError, DataError, ConfigError):
        if _is_untouched(path):
            _remove(path, keep=existed)
        raise


def training_run(
    path: Path, checkpoint: Checkpoint | None, *, command: str, settings: Settings, resume: bool
) -> AbstractContextManager[RunFolder]:
    """The folder of training on a file: a new one, or that of the run that goes on after the checkpoint.

    Raises:
        ConfigError: There is something in the folder already, or another process holds it.
    """
    if not resume:
        return new_run(path, command=command, settings=settings)
    iteration = checkpoint.iteration if checkpoint else -1
    folder = RunFolder.reopen(path, settings=to_public_dict(settings), save_token_ids=False, iteration=iteration)
    checkpoints.discard_after(path, iteration)
    return folder


def _is_untouched(path: Path) -> bool:
    """Nothing was played: only the first files have content, and events of boxes and of the run's own start and end."""
    files = [entry for entry in path.rglob("*") if not entry.is_dir()]
    later = [file for file in files if file.name not in _WRITTEN_FIRST and file.stat().st_size]
    return all(file.name == _EVENTS for file in later) and all(
        record.get("event") in _BEFORE_PLAY for file in later for record in read_jsonl(file)
    )


def _remove(path: Path, *, keep: bool) -> None:
    """Deletes the folder; with `keep`, which was there before the run, its content only."""
    for entry in list(path.iterdir()) if keep else [path]:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
