"""The folder of a run: run.json and settings.json, append-only records, and the manifest of inputs and outputs."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal

from finqa_cli import __version__
from finqa_cli.deletion import discard, lock_folder, unlock_folder
from finqa_cli.errors import (
    AuthenticationError,
    ConfigError,
    DataError,
    InterruptedRun,
    NothingToLearnError,
    UsageError,
)
from finqa_cli.masking import Masker, masked
from finqa_cli.processes import ask_program, host_name, start_time
from finqa_cli.runs.checkpoints import Checkpoint, discard_after
from finqa_cli.runs.durable_files import now, sha256_of, storage, write_json
from finqa_cli.runs.jsonl import GroupCommit, JsonlWriter, read_jsonl, rewind
from finqa_cli.runs.links import LINKS, link_of, links_of_settings, locate_settings
from finqa_cli.runs.mirror import Mirror, mirroring
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.settings.recorded_versions import from_record, with_grader
from finqa_cli.types import PolicyVersion, Status, Trajectory
from finqa_cli.types.run_events import RunEvent

MANIFEST = "manifest.json"
SETTINGS = "settings.json"
FAULTS = "faults"
"""Key of run.json for the number of attempts of an evaluation that ended in faults."""

WORKED = "seconds"
"""Key of run.json for the seconds of work in all sessions; None if a session crashed."""

_PACKAGES = ("torch", "transformers", "peft", "vllm")
_WRITTEN_FIRST = {".lock", "run.json", SETTINGS, MANIFEST}
_EVENTS, _BEFORE_PLAY = "events.jsonl", {"run_start", "run_end", "pool", "sandbox_ready", "sandbox_failed"}

_NAMED: set[Path] = set()
"""Paths that `new_run_path` has returned in this process."""

_NAMING = threading.Lock()

_RESUMABLE = ("train", "sft", "dpo", "sample", "eval")
"""Commands of run folders that have the flag --resume."""


class Retried(RunEvent):
    """An attempt was recorded that had been played again, or had continued after a lost connection."""

    event: Literal["retried"]
    id: str
    """Id of the attempt."""
    status: Status
    """Why it ended."""
    retries: int
    """Earlier attempts that ended in a fault."""
    recoveries: int
    """How often the episode continued in a new session."""


class RunFolder:
    """An open run folder, locked for this process.

    `settings.json` and `run.json` are on disk before any record is. Use it as a context manager: when the block fails,
    it writes the final status, and it always closes the files.
    """

    def __init__(self, path: Path, lock: int, facts: dict[str, Any], *, save_token_ids: bool) -> None:
        self.path = path
        self._lock = lock
        self._facts = facts
        self._opened = time.monotonic()
        self._save_token_ids = save_token_ids
        write_json(path / "run.json", facts)
        self._trajectories = GroupCommit(path / "trajectories.jsonl")
        self._metrics = JsonlWriter(path / "metrics.jsonl")
        self._events = GroupCommit(path / _EVENTS)  # hundreds per second while sandboxes start
        self._unwritten: BaseException | None = None
        self._mirror: Mirror | None = None

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        command: str,
        settings: Mapping[str, Any],
        save_token_ids: bool,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> RunFolder:
        """Start a new run in an empty or missing folder; `more` are further facts for its run.json.

        Raises:
            ConfigError: The folder is not empty, or another process has locked it.
        """
        if path.is_dir() and not _is_unused(path):
            known = (path / "run.json").is_file()
            facts = read_run(path) if known else {}
            begun = facts.get("command", "")
            resumable = begun in _RESUMABLE and not is_over(facts)
            remedy = f"finqa {begun} --resume {path}, or another --run-dir" if resumable else ""
            what = "holds a run already" if known else "is not empty"
            raise ConfigError(f"{path} {what}.", remedy=remedy or "choose another --run-dir")
        lock = lock_folder(path)
        facts = {
            "schema_version": 1,
            "id": path.name,
            "command": command,
            "created": now(),
            "status": "running",
            **process_facts(),
            "finqa": __version__,
            "commit": source_commit(),
            "python": platform.python_version(),
            "resumed": [],
            LINKS: links_of_settings(path, settings),
            **more,
        }
        write_json(path / SETTINGS, dict(settings))
        return cls(path, lock, facts, save_token_ids=save_token_ids)

    @classmethod
    def reopen(
        cls,
        path: Path,
        *,
        settings: Mapping[str, Any],
        save_token_ids: bool,
        iteration: int,
        keep: Callable[[Mapping[str, Any]], bool] = lambda record: True,
    ) -> RunFolder:
        """Resume a run after the checkpoint of `iteration`.

        Args:
            path: Folder of the run.
            settings: Settings to record.
            save_token_ids: Episodes are recorded with their token ids.
            iteration: Records of later iterations are moved to the files of superseded records; see `rewind`.
            keep: Returns whether the record of an episode stays; other records are moved too.

        Raises:
            ConfigError: Another process has locked the folder.
            DataError: The folder is not a run, or a record is damaged.
        """
        facts = read_run(path)
        lock = lock_folder(path)
        rewind(path / "trajectories.jsonl", lambda record: _is_of(record, iteration) and keep(record))
        rewind(path / "metrics.jsonl", lambda record: _is_of(record, iteration))
        write_json(path / SETTINGS, dict(settings))
        resumed = [*facts.get("resumed", []), {"at": now(), "iteration": iteration}]
        links = {**facts.get(LINKS, {}), **links_of_settings(path, settings)}
        if facts["status"] == "crashed" or WORKED not in facts:  # how long an earlier session worked is not recorded
            facts[WORKED] = None
        facts |= {"status": "running", **process_facts(), "resumed": resumed, LINKS: links}
        return cls(path, lock, facts, save_token_ids=save_token_ids)

    @property
    def command(self) -> str:
        """The command of the run, as in `finqa COMMAND`."""
        return str(self._facts["command"])

    def pin(self, name: str, value: str, *, formerly: Collection[str] = (), fixed: bool = True) -> None:
        """Record a value that the run depends on. In a resumed run it must equal the recorded value.

        Args:
            name: Name of the value, also for messages.
            value: The value.
            formerly: Values that earlier versions of finqa recorded for the same thing.
            fixed: Something in the run depends on the value already; if not, another value replaces it.

        Raises:
            ConfigError: The value differs from the one with which the run was started.
        """
        before = self._facts.get(name, value) if fixed else value
        if before != value and before not in formerly:
            raise ConfigError(
                f"The {name} is {value}, but {self.path} was started with {before}.",
                remedy="restore the original, or start a new run with another --run-dir",
            )
        self._facts[name] = before
        write_json(self.path / "run.json", self._facts)

    def link(self, *references: str) -> None:
        """Record links to the paths among these texts, so that they are found after a move; see the module `links`."""
        for reference in references:
            self._facts[LINKS] = {**self._facts.get(LINKS, {}), **link_of(self.path, reference)}
        write_json(self.path / "run.json", self._facts)

    def plan(self, episodes: int) -> None:
        """Record the planned number of episodes of the run, so that a report can show its progress."""
        self.note("episodes", episodes)

    def note(self, name: str, value: Any) -> None:
        """Record a fact of the run in run.json."""
        self._facts[name] = value
        write_json(self.path / "run.json", self._facts)

    def trajectory(self, trajectory: Trajectory, **where: Any) -> Future[None]:
        """Queue the record of one trajectory; `where` has further fields, such as its phase and iteration.

        If it was retried, or continued after a lost connection, the event `retried` is recorded too.

        Returns:
            Future that is done when the record is on disk, or has a StorageError. Until then the episode does not
            count. In an event loop, await it with `asyncio.wrap_future`.
        """
        made, ids = trajectory.record, self._save_token_ids
        written = self._trajectories.append(
            lambda: where if made else {**where, **trajectory_record(trajectory, token_ids=ids)},
            made.text if made else b"",
        )
        counts = {"retries": trajectory.retries, "recoveries": trajectory.recoveries}
        if any(counts.values()):
            self.event("retried", id=trajectory.id, status=trajectory.status, **counts)
        return written

    def attempt(self, record: Mapping[str, Any]) -> Future[None]:
        """Queue the record of an attempt that was recorded in another file; return a future as `trajectory` does."""
        return self._trajectories.append(lambda: record)

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        self._metrics.append(record)

    def event(self, name: str, **facts: Any) -> Future[None]:
        """Queue one event with its time, without secrets.

        Returns:
            Future that is done when this event and all earlier ones are on disk, or has a StorageError.

        Raises:
            StorageError: An earlier event could not be written.
        """
        if self._unwritten is not None:
            raise self._unwritten
        record = {"event": name, "time": time.time(), **masked(facts, mask=Masker())}
        written = self._events.append(lambda: record)
        written.add_done_callback(self._note_event)
        return written

    def _note_event(self, written: Future[None]) -> None:
        self._unwritten = self._unwritten or written.exception()

    def mirror_to(self, mirror: Mirror) -> None:
        """Let `update_mirror` copy the folder to `mirror`, and record the mirror's events."""
        self._mirror = mirror
        mirror.report_to(lambda name, facts: self.event(name, **facts))

    def update_mirror(self) -> None:
        """Start a copy of the folder, if it has a mirror. Returns at once."""
        if self._mirror is not None:
            self._mirror.update()

    def finish(self, status: str) -> None:
        """Write the final status, and the seconds of work by the monotonic clock."""
        before = self._facts.get(WORKED, 0.0)
        worked = None if before is None else round(before + time.monotonic() - self._opened, 3)
        self._facts = {**self._facts, "status": status, "finished": now(), WORKED: worked}
        write_json(self.path / "run.json", self._facts)

    def close(self) -> None:
        """Write the queued records, close the files and release the lock."""
        for writer in (self._trajectories, self._metrics, self._events):
            writer.close()
        unlock_folder(self._lock)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self._facts.get("status") == "running":
            stopped = isinstance(error, (KeyboardInterrupt, InterruptedRun, asyncio.CancelledError))
            self.finish("interrupted" if stopped else "failed")
        self.close()


def read_run(path: Path) -> dict[str, Any]:
    """Read the facts of run.json. If the process of a run ended without a final status, the status is `crashed`.

    Raises:
        DataError: The folder is not a run, or the file is damaged.
    """
    facts = _read_json(path / "run.json", f"{path} is not a run folder: it has no run.json.")
    return {**facts, "status": "crashed"} if facts.get("status") == "running" and _is_gone(facts) else facts


def is_over(facts: Mapping[str, Any]) -> bool:
    """Whether nothing can be resumed: an evaluation was completed without faults. Training can always be extended."""
    return facts.get("command") == "eval" and facts.get("status") == "completed" and not facts.get(FAULTS)


def _is_of(record: Mapping[str, Any], iteration: int) -> bool:
    return int(record.get("iteration", 0)) <= iteration


def process_facts() -> dict[str, Any]:
    """The facts of run.json that identify this process, even after its pid is reused: pid, start time and host."""
    pid = os.getpid()
    return {"pid": pid, "pid_started": start_time(pid), "host": host_name()}


def _is_gone(facts: Mapping[str, Any]) -> bool:
    """Whether the process of a run is known to have ended, which can only be known on its own machine."""
    pid = facts.get("pid")
    if not isinstance(pid, int) or facts.get("host", host_name()) != host_name():
        return False
    return (found := start_time(pid)) is None or facts.get("pid_started", found) != found


def read_settings(path: Path) -> dict[str, Any]:
    """Read the resolved settings of a run, with paths that are usable in this working directory even after a move.

    Raises:
        DataError: The file is missing or damaged.
    """
    return with_grader(from_record(locate_settings(path, _read_json(path / SETTINGS, f"{path} has no settings.json."))))


def _is_unused(path: Path) -> bool:
    """Whether a folder is empty, or has only files of a process that was killed before it wrote run.json."""
    names = {entry.name for entry in path.iterdir()} - {".lock"}
    unfinished = {name for name in names if re.fullmatch(r"\.(settings|run)\.json\.\d+", name)}
    ours = {SETTINGS} if (path / ".lock").is_file() else set()
    return not names - unfinished - ours


def new_run_path(base: Path, prefix: str = "") -> Path:
    """Return `<base>/<prefix>YYYYMMDD_HHMMSS`, with a number at its end if two runs start in the same second.

    Each path is returned once per process, because runs may start before the folder of another one exists.
    """
    stamp = f"{prefix}{datetime.now():%Y%m%d_%H%M%S}"
    candidates = (base / (stamp if number == 0 else f"{stamp}_{number}") for number in range(10_000))
    with _NAMING:
        path = next(path for path in candidates if path.absolute() not in _NAMED and not path.exists())
        _NAMED.add(path.absolute())
    return path


def _read_json(path: Path, missing: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(missing) from error
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}.") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is damaged: expected a JSON object.")
    return value


@contextmanager
def new_run(
    path: Path, *, command: str, settings: Settings, more: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[RunFolder]:
    """Create a run folder for this block; see `RunFolder.create`.

    If a setting, key, model, data file or policy turns out to be wrong before the first record, the folder is removed,
    so that the same command can be repeated when it is fixed. After other failures the folder stays: the run can be
    resumed.

    Raises:
        ConfigError: The folder is not empty, or another process has locked it.
    """
    existed = path.is_dir()
    facts, token_ids = to_public_dict(settings), settings.run.save_token_ids
    folder = RunFolder.create(path, command=command, settings=facts, save_token_ids=token_ids, more=more)
    try:
        with folder:
            yield folder
    except (UsageError, DataError, ConfigError, AuthenticationError, NothingToLearnError):
        if is_untouched(path):
            _remove(path, keep=existed)
        raise


@contextmanager
def training_run(
    path: Path, checkpoint: Checkpoint | None, *, command: str, settings: Settings, resume: bool
) -> Iterator[RunFolder]:
    """Open the folder of a training run for this block: a new one, or that of a run resumed after the checkpoint.

    With `run.mirror` it is copied once more after it is closed.

    Raises:
        ConfigError: The folder is not empty, another process has locked it, a package for the address of `run.mirror`
            is not installed, or the address has the copy of another run.
    """
    with (
        mirroring(path, settings.run.mirror) as mirror,
        _open_training(path, checkpoint, command=command, settings=settings, resume=resume) as folder,
    ):
        if mirror is not None:
            mirror.check_owner()
            folder.mirror_to(mirror)
        yield folder


def _open_training(
    path: Path, checkpoint: Checkpoint | None, *, command: str, settings: Settings, resume: bool
) -> AbstractContextManager[RunFolder]:
    if not resume:
        return new_run(path, command=command, settings=settings)
    iteration = checkpoint.iteration if checkpoint else -1
    folder = RunFolder.reopen(
        path, settings=to_public_dict(settings), save_token_ids=settings.run.save_token_ids, iteration=iteration
    )
    discard_after(path, iteration)
    return folder


def is_untouched(path: Path) -> bool:
    """Whether nothing was played: only the first files have content, and no event is about playing."""
    files = [entry for entry in path.rglob("*") if not entry.is_dir()]
    later = [file for file in files if file.name not in _WRITTEN_FIRST and file.stat().st_size]
    return all(file.name == _EVENTS for file in later) and all(
        record.get("event") in _BEFORE_PLAY for file in later for record in read_jsonl(file)
    )


def _remove(path: Path, *, keep: bool) -> None:
    """Delete the folder; with `keep`, delete only its content, because the folder existed before the run."""
    for entry in list(path.iterdir()) if keep else [path]:
        discard(entry)


def write_manifest(
    folder: Path,
    command: str,
    *,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    outputs: Sequence[Path] = (),
) -> None:
    """Write the manifest into the folder; it replaces an older one.

    Args:
        folder: Folder of the run or step.
        command: The command, as in `finqa COMMAND`.
        parameters: Settings that the result depends on, seeds included.
        inputs: Inputs by name, or in order, each with its digests.
        outputs: Final files of the folder; each is listed with its digest.

    Raises:
        StorageError: An output cannot be read, or the manifest cannot be written.
    """
    with storage(folder / MANIFEST):
        digests = {str(path.relative_to(folder)): sha256_of(path) for path in outputs}
    write_json(
        folder / MANIFEST,
        {
            "schema_version": 1,
            "command": command,
            "created": now(),
            "versions": versions(),
            "parameters": masked(parameters),
            "inputs": masked(inputs),
            "outputs": digests,
        },
    )


def policy_inputs(policy: PolicyVersion) -> dict[str, Any]:
    """Model, adapter and number of a policy, SHA-256 of each of its files here, and of all names and digests."""
    places = (policy.adapter, Path(policy.model) if policy.model else None)  # Path("") is the working directory
    folders = [place for place in places if place is not None and place.is_dir()]
    files = {str(path): sha256_of(path) for folder in folders for path in sorted(folder.iterdir()) if path.is_file()}
    whole = hashlib.sha256("".join(f"{Path(path).name} {digest}\n" for path, digest in files.items()).encode())
    adapter = str(policy.adapter) if policy.adapter else None
    facts = {"model": policy.model, "adapter": adapter, "number": policy.number}
    return {**facts, "sha256": whole.hexdigest() if files else None, "files": files}


@functools.cache  # the modules of a process do not change after its start
def source_commit() -> str:
    """Commit of the checkout that finqa runs from, with `-dirty` if it has changes; empty for an installed package."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return ask_program(command, timeout_s=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""  # git is not installed, or the checkout belongs to another user


@functools.cache
def versions() -> Mapping[str, str]:
    """Versions of finqa, Python and the packages that affect a policy; packages that are not installed are absent."""
    found = {"finqa": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
