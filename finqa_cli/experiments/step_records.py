"""What is known on disk of the steps of a pipeline or experiment: `run.json`, and manifests that say what is done."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finqa_cli import __version__
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.experiments.pipeline_plan import Step
from finqa_cli.experiments.step_process import Ended
from finqa_cli.processes import start_time
from finqa_cli.runs.durable_files import lock_folder, now, read_document, sha256_of, storage, write_json
from finqa_cli.runs.run_folder import MANIFEST, read_run, write_manifest

SET_ASIDE = "set_aside"

State = Literal["to do", "begun", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The command whose steps a folder holds.

    Attributes:
        command: As run.json has it.
        resume: What goes on with a folder, whose path follows.
        redo: The flag that does a step again.
    """

    command: str
    resume: str
    redo: str


PIPELINE = Owner(command="pipeline", resume="finqa pipeline --resume", redo="--from")


class PipelineFolder:
    """The folder of steps, held by this process. Use as a context manager: it writes the final status."""

    def __init__(self, path: Path, facts: dict[str, Any], owner: Owner = PIPELINE) -> None:
        self.path = path
        self._facts = facts
        self._owner = owner
        self._steps: dict[str, dict[str, Any]] = facts["steps"]

    @property
    def resume(self) -> str:
        """The command that goes on with it."""
        return f"{self._owner.resume} {self.path}"

    @property
    def owner(self) -> str:
        """The command whose steps it holds."""
        return self._owner.command

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What it was asked for, as `PipelineSpec.document` says it."""
        parameters: dict[str, Any] = self._facts["parameters"]
        return parameters

    def seconds(self, step: Step) -> float | None:
        """What the step took, all its starts together; None before its end."""
        record = self._steps.get(step.name, {})
        return float(record["seconds"]) if record.get("status") == "completed" else None

    def state(self, step: Step) -> State:
        """Whether a step is done: its record says so, and its manifest and outputs are those that it ended with.

        Raises:
            ConfigError: It was done, but its command, what it read or what it wrote is no longer the same; or its
                folder holds something that no step wrote; or it still runs.
        """
        folder, record = self.path / step.name, self._steps.get(step.name)
        if record is None or not folder.is_dir():
            if record is None and folder.is_dir() and any(folder.iterdir()):
                foreign = f"{folder} holds something that is not of this {self.owner}."
                raise ConfigError(foreign, remedy=f"mv {folder} ...")
            return "to do"
        if record["status"] == "completed":
            if reason := self._changed(step, record):
                raise self.stale(step, f"{step.name} was done, but {reason}")
            return "done"
        if self._ended_unheard(step, record):
            self._complete(step, record)
            return "done"
        if _runs(record):
            raise ConfigError(f"{step.name} still runs, as process {record['pid']}.", remedy=f"kill {record['pid']}")
        return "begun"

    def stale(self, step: Step, why: str) -> ConfigError:
        """That this step and those after it must be done again."""
        remedy = f"{self.resume} {self._owner.redo} {step.name}"
        return ConfigError(f"{why}. Nothing was overwritten.", remedy=f"{remedy} (what is there is set aside)")

    def begin(self, step: Step, arguments: Sequence[str], pid: int) -> None:
        """Notes that the step runs."""
        earlier = self._steps.get(step.name, {})
        self._steps[step.name] = {
            "status": "running",
            "command": ["finqa", *step.arguments],
            "recipe": _recipe(step, self.path),
            "last_command": ["finqa", *arguments],
            "reads": earlier.get("reads") or self._digests(step),
            "started": earlier.get("started") or now(),
            "seconds": earlier.get("seconds", 0.0),
            "pid": pid,
            "pid_start": start_time(pid),
        }
        self._write()

    def end(self, step: Step, ended: Ended) -> None:
        """Notes how it ended; a step whose command writes no manifest gets one here.

        Raises:
            StorageError: The manifest cannot be written.
        """
        record = self._steps[step.name]
        record |= {"exit_code": ended.code, "seconds": round(record["seconds"] + ended.seconds, 3)}
        if ended.code == 0:
            self._complete(step, record)
            return
        record["status"] = "failed"
        self._write()

    def set_aside(self, steps: Sequence[Step]) -> list[Path]:
        """Moves the folders of these steps below `set_aside` and forgets their records; gives the new places."""
        moved = []
        for step in steps:
            folder = self.path / step.name
            if folder.exists():
                target = _free(self.path / SET_ASIDE, step.name.replace("/", "_"))
                with storage(target):
                    target.parent.mkdir(exist_ok=True)
                    shutil.move(folder, target)
                moved.append(target)
            self._steps.pop(step.name, None)
        self._write()
        return moved

    def manifest(self, steps: Sequence[Step]) -> None:
        """Writes the manifest of the whole: what was asked for, and the manifest of each step by its digest."""
        inputs = {
            step.name: {"manifest": f"{step.name}/{MANIFEST}", "sha256": self._steps[step.name]["manifest"]}
            for step in steps
        }
        write_manifest(self.path, self.owner, parameters=self.parameters, inputs=inputs)

    def finish(self, status: str) -> None:
        """Writes the status of the whole."""
        self._facts |= {"status": status, "finished": now()}
        self._write()

    def _changed(self, step: Step, record: Mapping[str, Any]) -> str:
        if record["recipe"] != _recipe(step, self.path):
            return f"by another command: {' '.join(record['command'])}"
        manifest = self.path / step.name / MANIFEST
        if not manifest.is_file() or sha256_of(manifest) != record["manifest"]:
            return f"{manifest} is not what it was"
        for name, digest in record["outputs"].items():
            file = manifest.parent / name
            if not file.is_file() or sha256_of(file) != digest:
                return f"{file} is not what it was"
        now = self._digests(step)
        changed = [name for name, digest in record["reads"].items() if now.get(name) != digest]
        return f"{changed[0]}, which it read, is no longer the same" if changed else ""

    def _digests(self, step: Step) -> dict[str, str | None]:
        paths = {name: self.path / name for name in step.reads}
        files = {name: path / MANIFEST if path.is_dir() else path for name, path in paths.items()}
        return {name: sha256_of(file) if file.is_file() else None for name, file in files.items()}

    def _ended_unheard(self, step: Step, record: Mapping[str, Any]) -> bool:
        """It came to its end while nobody listened: this process was killed and the step was not."""
        folder = self.path / step.name
        completed = read_document(folder / "run.json").get("status") == "completed"
        return "exit_code" not in record and not _runs(record) and completed and (folder / MANIFEST).is_file()

    def _complete(self, step: Step, record: dict[str, Any]) -> None:
        folder = self.path / step.name
        if not (folder / MANIFEST).is_file():
            files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]
            facts = {"arguments": list(step.arguments)}
            write_manifest(folder, step.command, parameters=facts, inputs=record["reads"], outputs=files)
        record |= {"status": "completed", "finished": now(), "manifest": sha256_of(folder / MANIFEST)}
        record["outputs"] = _outputs(folder)
        self._write()

    def _write(self) -> None:
        write_json(self.path / "run.json", self._facts)

    def __enter__(self) -> PipelineFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.finish("failed" if getattr(error, "exit_code", 1) < 128 else "interrupted")


@contextmanager
def opened(path: Path, parameters: Mapping[str, Any], owner: Owner = PIPELINE) -> Iterator[PipelineFolder]:
    """The folder, begun or gone on with, for this process alone.

    Raises:
        ConfigError: Another process holds it, or something else is in it.
        StorageError: It cannot be made or written.
    """
    lock = lock_folder(path)
    try:
        facts = read_facts(path, owner)
        if facts is None:
            facts = {"schema_version": 1, "id": path.name, "command": owner.command, "created": now(), "steps": {}}
            facts |= {"finqa": __version__, "python": platform.python_version(), "parameters": dict(parameters)}
        facts |= {"status": "running", "pid": os.getpid()}
        with PipelineFolder(path, facts, owner) as folder:
            yield folder
    finally:
        os.close(lock)


def read_facts(path: Path, owner: Owner = PIPELINE) -> dict[str, Any] | None:
    """The facts of the pipeline or experiment in a folder; None for a folder that is empty or not there.

    Raises:
        ConfigError: Something else is in it.
        DataError: Its run.json is damaged.
    """
    if not path.exists() or (path.is_dir() and not [entry for entry in path.iterdir() if entry.name != ".lock"]):
        return None
    facts = read_run(path) if (path / "run.json").is_file() else {}
    if facts.get("command") != owner.command:
        what = f"is a run of `finqa {facts['command']}`" if "command" in facts else "is not empty"
        raise ConfigError(f"{path} {what}, and no {owner.command}.", remedy="choose another --output")
    if not isinstance(facts.get("steps"), dict) or not isinstance(facts.get("parameters"), dict):
        raise DataError(f"{path / 'run.json'} is damaged.", remedy="choose another --output")
    return facts


def new_output(base: Path) -> Path:
    """`<base>/run_001`, or the next number that is free; the folder is made, so that nobody else takes it."""
    with storage(base):
        base.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1_000_000):
            path = base / f"run_{number:03d}"
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    raise ConfigError(f"There is no free run number below {base}.", remedy="--output FOLDER")


def _runs(record: Mapping[str, Any]) -> bool:
    pid, begun = record.get("pid"), record.get("pid_start")
    return record.get("status") == "running" and begun is not None and start_time(int(pid or 0)) == begun


def _outputs(folder: Path) -> dict[str, str]:
    """Name and sha256 of what a step wrote, as its manifest says, or else of the files that lie beside that."""
    outputs = read_document(folder / MANIFEST).get("outputs")
    if isinstance(outputs, dict):
        return outputs
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
    return {file.name: sha256_of(file) for file in files}


def _recipe(step: Step, run: Path) -> list[str]:
    """The arguments of a step, wherever the folder of the pipeline lies."""
    inside = f"{run}/"
    return [f"RUN/{word.removeprefix(inside)}" if word.startswith(inside) else word for word in step.arguments]


def _free(folder: Path, name: str) -> Path:
    return next(path for number in range(1, 1_000_000) if not (path := folder / f"{name}_{number}").exists())
