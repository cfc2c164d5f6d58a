"""Steps of pipelines and experiments: each is a finqa command in its own process, recorded and resumable.

`run.json` in the folder of the pipeline or experiment has a record of every step. A step is done if its manifest and
outputs are unchanged since its end. A step that was stopped is resumed if its command can resume; otherwise its files
are moved aside and it starts again. Nothing is overwritten.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from finqa_cli import __version__
from finqa_cli.deletion import lock_folder, unlock_folder
from finqa_cli.errors import ConfigError, DataError, FinqaError, InterruptedRun, NothingToLearnError, RequeuedRun
from finqa_cli.processes import start_time
from finqa_cli.runs.durable_files import now, read_document, sha256_of, storage, write_json
from finqa_cli.runs.interrupts import next_signal, stop_signals, stopped_by
from finqa_cli.runs.run_folder import MANIFEST, is_over, process_facts, read_run, write_manifest
from finqa_cli.settings.schema import DECLARATIONS

RESUMABLE = ("train", "sft", "sample", "dpo", "eval")
"""Commands that take --resume FOLDER."""

SET_ASIDE = "set_aside"

_PLACE = "place"
"""Key of run.json: path of the folder as the user typed it at the start."""

State = Literal["to do", "begun", "done"]
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command.

    Attributes:
        name: Name of the step and of its folder below the run, such as `10_eval/sft`.
        arguments: Words after `finqa`.
        reads: Earlier steps and files below the run that the step depends on.
        stdout: File in the step's folder for standard output, if the command itself writes no folder; or empty.
    """

    name: str
    arguments: tuple[str, ...]
    reads: tuple[str, ...] = ()
    stdout: str = ""

    @property
    def command(self) -> str:
        """Name of the command, such as `rewards show`."""
        words = self.arguments[:2] if self.arguments[0] in ("data", "snapshot", "rewards") else self.arguments[:1]
        return " ".join(words)

    @property
    def line(self) -> str:
        """The command line of the step."""
        return shlex.join(["finqa", *self.arguments])


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The command whose steps a folder contains.

    Attributes:
        command: Name of the command in run.json.
        resume: Command that resumes a folder; its path is appended.
        redo: Flag that runs a step again.
        flags: Command of a step -> its flags -> the flags of this command that set the same.
    """

    command: str
    resume: str
    redo: str
    flags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a step ended.

    Attributes:
        code: Exit code; the negative signal number if a signal killed the process.
        seconds: Wall time.
        reason: The last error that the command printed (see `finqa_cli.boundary`), or empty.
        remedy: The remedy that it printed, or empty.
    """

    code: int
    seconds: float
    reason: str
    remedy: str


@dataclass(slots=True)
class Relay:
    """Runs commands as child processes and passes signals on to them; remembers the first signal."""

    stopped: signal.Signals | None = None
    _process: subprocess.Popen[str] | None = field(default=None)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sends signals to the process of `run` while active; this process continues. Ignored signals stay ignored."""
        watched = [number for number in stop_signals() if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in watched}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(
        self,
        arguments: Sequence[str],
        log: Path,
        *,
        stdout: Path | None,
        show: Show,
        started: Callable[[int], None],
    ) -> Ended:
        """Runs `finqa ARGUMENTS` to its end.

        Args:
            arguments: Words after `finqa`.
            log: File to which its output is appended.
            stdout: File for its standard output, which is then not in the log.
            show: Called with each line of the log.
            started: Called with the process id.

        Raises:
            StorageError: A file cannot be written.
        """
        begun, last = time.perf_counter(), {"error": "", "fix": ""}
        with ExitStack() as stack:
            with storage(log):
                log.parent.mkdir(parents=True, exist_ok=True)
                kept = stack.enter_context(log.open("a", encoding="utf-8"))
                result = stack.enter_context(stdout.open("wb")) if stdout is not None else None
            process = subprocess.Popen(
                [sys.executable, "-m", "finqa_cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=result or subprocess.PIPE,
                stderr=subprocess.PIPE if result else subprocess.STDOUT,
                text=True,
                errors="replace",
                process_group=0,  # so that Ctrl-C on a terminal reaches it once, through this process
            )
            self._process = process
            try:
                if self.stopped is not None:  # a signal arrived between the last check and the start
                    process.send_signal(self.stopped)
                started(process.pid)
                lines = process.stderr if result else process.stdout
                assert lines is not None, "it is a pipe"
                for line in lines:
                    kept.write(line)
                    kept.flush()
                    kind, _, text = line.rstrip("\n").partition(": ")
                    if kind in last:
                        last[kind] = text
                    show(line.rstrip("\n"))
                code = process.wait()
            finally:
                self._process = None
                if process.poll() is None:  # showing or logging a line failed
                    process.terminate()
                    process.wait()
                for pipe in (process.stdout, process.stderr):
                    if pipe is not None:
                        pipe.close()
        return Ended(code=code, seconds=time.perf_counter() - begun, reason=last["error"], remedy=last["fix"])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stopped = next_signal(self.stopped, signal.Signals(number))
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


class StepFolder:
    """The folder of a pipeline or experiment: keeps the records of its steps and runs them."""

    def __init__(self, path: Path, facts: dict[str, Any], owner: Owner) -> None:
        self.path = path
        self.owner = owner
        self._facts = facts
        self._steps: dict[str, dict[str, Any]] = facts["steps"]

    @property
    def resumption(self) -> str:
        """The command that resumes the pipeline or experiment."""
        return f"{self.owner.resume} {self.path}"

    def seconds(self, step: Step) -> float | None:
        """Returns the wall time of a step in seconds, over all its starts; None before its end."""
        record = self._steps.get(step.name, {})
        return float(record["seconds"]) if record.get("status") == "completed" else None

    def state(self, step: Step) -> State:
        """Returns the state of a step. It is done if its record says so and its manifest and outputs are unchanged.

        Raises:
            ConfigError: The step was done, but its command, inputs or outputs have changed since; or its folder
                contains files that no step wrote; or it is still running.
        """
        folder, record = self.path / step.name, self._steps.get(step.name)
        if record is None or not folder.is_dir():
            if record is None and folder.is_dir() and any(folder.iterdir()):
                foreign = f"{folder} contains files that do not belong to this {self.owner.command}."
                raise ConfigError(foreign, remedy=f"mv {folder} {folder}.aside")
            return "to do"
        if record["status"] == "completed":
            if reason := self._changed(step, record):
                raise self.stale(step, f"{step.name} was done, but {reason}")
            return "done"
        if _runs(record):
            raise ConfigError(
                f"{step.name} still runs, as process {record['pid']}.",
                remedy=f"wait until it ends, or stop it: kill {record['pid']}",
            )
        completed = read_document(folder / "run.json").get("status") == "completed"
        if "exit_code" not in record and completed and (folder / MANIFEST).is_file():
            self._complete(step, record)  # the step finished after the process that recorded it was killed
            return "done"
        return "begun"

    def stale(self, step: Step, why: str) -> ConfigError:
        """Returns the error whose remedy runs this step and later ones again."""
        remedy = f"{self.resumption} {self.owner.redo} {step.name}"
        return ConfigError(f"{why}. Nothing was overwritten.", remedy=f"{remedy}, which moves its contents aside")

    def run(self, step: Step, relay: Relay, show: Show, place: str) -> None:
        """Runs a step unless it is done: from the beginning, or resumed.

        Args:
            step: The step.
            relay: Runs its process.
            show: Called with each line of output.
            place: Position among all steps, such as `3/11`.

        Raises:
            ConfigError: See `state`.
            FinqaError: The step failed; the error has its exit code.
            InterruptedRun: A signal stopped this step, or arrived before it.
        """
        if (state := self.state(step)) == "done":
            return
        if relay.stopped is not None:
            raise self._interrupted(relay.stopped)
        show(f"[{place}] {step.name}: {step.line}")
        arguments: Sequence[str] = step.arguments
        target = self.path / step.name
        if state == "begun" and _can_resume(step, target):
            arguments = (step.arguments[0], "--resume", f"{target}")
            show(f"Resuming: {shlex.join(['finqa', *arguments])}")
        elif state == "begun":
            for moved in self.set_aside([step]):
                show(f"Moved aside files of an unfinished attempt: {moved}")
        if step.stdout:
            with storage(target):
                target.mkdir(parents=True, exist_ok=True)
        log = self.path / "logs" / f"{step.name.replace('/', '_')}.log"
        ended = relay.run(
            arguments,
            log,
            stdout=target / step.stdout if step.stdout else None,
            show=show,
            started=lambda pid: self._begin(step, arguments, pid),
        )
        if (
            ended.code == NothingToLearnError.exit_code
            and read_document(target / "run.json").get("status") == "completed"
        ):
            show(f"{step.name} finished without an update: {ended.reason}")
            ended = replace(ended, code=0)  # later steps show the effect
        self._end(step, ended)
        if ended.code != 0:
            raise self._interrupted(relay.stopped) if relay.stopped is not None else self._failed(step, ended, log)

    def set_aside(self, steps: Sequence[Step]) -> list[Path]:
        """Moves the folders of these steps below `set_aside` and removes their records; returns the new places."""
        moved = []
        for step in steps:
            folder = self.path / step.name
            if folder.exists():
                places = (
                    self.path / SET_ASIDE / f"{step.name.replace('/', '_')}_{number}" for number in range(1, 1_000_000)
                )
                target = next(path for path in places if not path.exists())
                with storage(target):
                    target.parent.mkdir(exist_ok=True)
                    shutil.move(folder, target)
                moved.append(target)
            self._steps.pop(step.name, None)
        self._write()
        return moved

    def finish(self, done: Sequence[Step] | None) -> None:
        """Writes the final status. If all steps are done, they are `done`, and the manifest is written too."""
        if done is not None:
            inputs = {
                step.name: {"manifest": f"{step.name}/{MANIFEST}", "sha256": self._steps[step.name]["manifest"]}
                for step in done
            }
            write_manifest(self.path, self.owner.command, parameters=self._facts["parameters"], inputs=inputs)
        self._finish("stopped" if done is None else "completed")

    def _begin(self, step: Step, arguments: Sequence[str], pid: int) -> None:
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

    def _end(self, step: Step, ended: Ended) -> None:
        record = self._steps[step.name]
        record |= {"exit_code": ended.code, "seconds": round(record["seconds"] + ended.seconds, 3)}
        if ended.code == 0:
            self._complete(step, record)
        else:
            record["status"] = "failed"
            self._write()

    def _complete(self, step: Step, record: dict[str, Any]) -> None:
        """Records a finished step, and writes a manifest if its command wrote none."""
        folder = self.path / step.name
        if not (folder / MANIFEST).is_file():
            files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]
            facts = {"arguments": list(step.arguments)}
            write_manifest(folder, step.command, parameters=facts, inputs=record["reads"], outputs=files)
        outputs = read_document(folder / MANIFEST).get("outputs")
        if not isinstance(outputs, dict):  # a manifest without outputs: all files in its folder count
            files = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
            outputs = {file.name: sha256_of(file) for file in files}
        record |= {"status": "completed", "finished": now(), "manifest": sha256_of(folder / MANIFEST)}
        record["outputs"] = outputs
        self._write()

    def _changed(self, step: Step, record: Mapping[str, Any]) -> str:
        if record["recipe"] != _recipe(step, self.path):
            return f"by another command: {' '.join(record['command'])}"
        manifest = self.path / step.name / MANIFEST
        expected = {manifest: record["manifest"]}
        expected |= {manifest.parent / name: digest for name, digest in record["outputs"].items()}
        for file, digest in expected.items():
            if not file.is_file() or sha256_of(file) != digest:
                return f"{file} has changed"
        read = self._digests(step)
        changed = [name for name, digest in record["reads"].items() if read.get(name) != digest]
        return f"{changed[0]}, which it read, has changed" if changed else ""

    def _digests(self, step: Step) -> dict[str, str | None]:
        paths = {name: self.path / name for name in step.reads}
        files = {name: path / MANIFEST if path.is_dir() else path for name, path in paths.items()}
        return {name: sha256_of(file) if file.is_file() else None for name, file in files.items()}

    def _interrupted(self, stopped: signal.Signals) -> InterruptedRun:
        return stopped_by(stopped, remedy=self.resumption)

    def _failed(self, step: Step, ended: Ended, log: Path) -> FinqaError:
        how = f"exit code {ended.code}" if ended.code > 0 else f"killed by signal {-ended.code}"
        reason = f": {ended.reason}" if ended.reason else f"; its output is in {log}."
        remedy = self.resumption
        if ended.remedy and (own := own_command(ended.remedy, step.command, self.owner)):
            remedy = own
        elif ended.remedy:
            kept = any(record["status"] == "completed" for record in self._steps.values())
            # A resumed run keeps data and settings, so a remedy of the step that changes them cannot be followed there.
            new = "the same command with a new --output"
            resumed = f"{self.resumption}, which keeps data and settings; after a change of these, {new}"
            remedy = f"{with_settings(ended.remedy)}; then {resumed if kept else new}"
        error = FinqaError(f"Step {step.name} failed ({how}){reason}", remedy=remedy)
        error.exit_code = ended.code if ended.code > 0 else 1
        return error

    def _finish(self, status: str) -> None:
        self._facts |= {"status": status, "finished": now()}
        self._write()

    def _write(self) -> None:
        write_json(self.path / "run.json", self._facts)


_OF_COMMANDS = re.compile(r"(\(?finqa [^;,)]*\)?|`[^`]*`)")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)((?: [^\s,;]+)?)")


def with_settings(remedy: str) -> str:
    """Returns the remedy of a step with `--set` in place of flags that pipelines and experiments may not have.

    Flags in the command lines that it names stay as they are.
    """
    parts = _OF_COMMANDS.split(remedy)
    parts[::2] = [_FLAG.sub(_as_setting, part) for part in parts[::2]]
    return "".join(parts)


def _as_setting(match: re.Match[str]) -> str:
    flag, value = match[1], match[2]
    for path, declaration in DECLARATIONS.items():
        on, _, off = declaration.about.flags.partition("/")
        if flag in on.split() and (declaration.flag_type is bool or off):
            return f"--set {path}=true{value}"
        if flag in off.split():
            return f"--set {path}=false{value}"
        if flag in on.split() and value:  # `--data with a file` names no value
            said = value.strip() in ("with", "for", "of", "in", "and", "to", "names")
            return f"--set {path}={path.rpartition('.')[2].upper()}{value}" if said else f"--set {path}={value.strip()}"
    return match[0]


def own_command(remedy: str, command: str, owner: Owner) -> str:
    """Returns what to do in place of a step's remedy that changes a step which the owner runs itself; or "".

    `finqa sample TARGET --num-candidates 16` is a step of a pipeline: the pipeline has a flag for that number.

    Args:
        remedy: What the step printed.
        command: The step's command.
        owner: The pipeline or experiment.
    """
    ways = []
    for place, part in enumerate(_OF_COMMANDS.split(remedy)):
        words = shlex.split(part.strip("()`"))
        named = words[1] if place % 2 and len(words) > 1 else command
        known = owner.flags.get(named, {})
        given = [f"{known[flag]}{value}" for flag, value in _FLAG.findall(part) if flag in known and value]
        ways += [" ".join(given)] if given else []
    return f"the same command with {', or with '.join(ways)}, and a new --output" if ways else ""


@contextmanager
def open_folder(path: Path, parameters: Mapping[str, Any], owner: Owner) -> Iterator[StepFolder]:
    """Creates or reopens the folder with these parameters, locks it for this process, and records how the block ends.

    Raises:
        ConfigError: Another process has locked the folder, or it contains something else.
        StorageError: The folder cannot be created or written.
    """
    lock = lock_folder(path)
    try:
        facts = read_facts(path, owner)
        if facts is None:
            facts = {"schema_version": 1, "id": path.name, "command": owner.command, "created": now(), "steps": {}}
            facts |= {"finqa": __version__, "python": platform.python_version()}
            facts[_PLACE] = str(path)
        facts |= {"status": "running", "parameters": dict(parameters), **process_facts()}
        folder = StepFolder(path, facts, owner)
        try:
            yield folder
        except BaseException as error:
            is_stop = isinstance(error, RequeuedRun) or getattr(error, "exit_code", 1) >= 128
            folder._finish("interrupted" if is_stop else "failed")
            raise
    finally:
        unlock_folder(lock)


def read_facts(path: Path, owner: Owner) -> dict[str, Any] | None:
    """Reads the facts of the pipeline or experiment in a folder; None for a folder that is empty or does not exist.

    Raises:
        ConfigError: The folder contains something else.
        DataError: Its run.json is damaged.
    """
    if not path.exists() or (path.is_dir() and not [entry for entry in path.iterdir() if entry.name != ".lock"]):
        return None
    facts = read_run(path) if (path / "run.json").is_file() else {}
    if facts.get("command") != owner.command:
        what = f"is a run of `finqa {facts['command']}`" if "command" in facts else "is not empty"
        remedy = "--output with a new folder, or --resume with one that the same command wrote"
        raise ConfigError(f"{path} {what}, and no {owner.command}.", remedy=remedy)
    if not isinstance(facts.get("steps"), dict) or not isinstance(facts.get("parameters"), dict):
        raise DataError(f"{path / 'run.json'} is damaged.", remedy="choose another --output")
    return facts


def place_of(run: Path) -> Path:
    """Returns the path of a pipeline or experiment as the user typed it at the start."""
    return Path(str(read_document(run / "run.json").get(_PLACE) or run))


def return_to(run: Path, show: Show) -> Path:
    """Changes the working directory to the one that the paths in the steps' commands are relative to.

    The commands contain paths as the user typed them at the start. So the steps run in the same directory as then, or,
    if the run was moved together with it, in its new place.

    Args:
        run: Current path of the pipeline or experiment.
        show: Called with a line that names the directory, if it changes.

    Returns:
        The path of the run from that directory, as the steps contain it.
    """
    begun = place_of(run)
    here = run.resolve()
    if begun.resolve() == here:
        return begun
    base = Path(*here.parts[: -len(begun.parts)])
    if begun.is_absolute() or ".." in begun.parts or base / begun != here:
        return run  # renamed, or started by an absolute path: `write_settings` then refuses settings with other paths
    os.chdir(base)
    show(f"Its steps use file paths relative to {base}, and run there.")
    return begun


def _runs(record: Mapping[str, Any]) -> bool:
    pid, begun = record.get("pid"), record.get("pid_start")
    return record.get("status") == "running" and begun is not None and start_time(int(pid or 0)) == begun


def _can_resume(step: Step, folder: Path) -> bool:
    """Returns whether a step can be resumed.

    Its command must have --resume and have written its settings, and, other than `train`, its manifest.
    """
    command, facts = step.arguments[0], read_document(folder / "run.json")
    if command not in RESUMABLE or facts.get("command") != command or is_over(facts):
        return False
    asked = command == "train" or bool(read_document(folder / MANIFEST).get("parameters"))
    return asked and (folder / "settings.json").is_file()


def _recipe(step: Step, run: Path) -> list[str]:
    """Returns the arguments of a step without the path of the run's folder, which can be moved."""
    inside = f"{run}/"
    return [f"RUN/{word.removeprefix(inside)}" if word.startswith(inside) else word for word in step.arguments]
