"""What the user typed for a command, and the settings that follow from it; what a resumed run takes of it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer

from finqa_cli import logs
from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.masking import Masker
from finqa_cli.runs.links import located
from finqa_cli.runs.run_folder import MANIFEST, read_run, read_settings
from finqa_cli.settings import AUTO, Loaded, Settings, from_public_dict, load_settings
from finqa_cli.settings.declarations import Declaration
from finqa_cli.settings.schema import DECLARATIONS

if TYPE_CHECKING:
    from finqa_cli.wiring.placing import Purpose

RESUMABLE = ("train", "sft", "dpo", "sample", "eval", "pipeline")
"""Commands that can resume a folder of theirs."""


def declaration_of(parameter: str | None) -> Declaration | None:
    """Return the setting that a parameter of a command sets; None for a parameter of the command's own."""
    return DECLARATIONS.get((parameter or "").replace("__", "."))


@dataclass(frozen=True)
class CommandLine:
    """The parameters of a command.

    Attributes:
        context: Typer's context of the command.
    """

    context: typer.Context

    @property
    def as_json(self) -> bool:
        """Whether stdout gets one JSON document, and stderr no progress."""
        return bool(self.context.params.get("as_json"))

    @property
    def quiet(self) -> bool:
        """Whether stderr gets no progress."""
        return bool(self.context.params.get("quiet"))

    @property
    def assignments(self) -> Sequence[str]:
        """The texts of `--set`."""
        return self.context.params.get("assign") or ()

    @property
    def files(self) -> Sequence[str]:
        """The files and names of `--config`."""
        return self.context.params.get("config") or ()

    @property
    def flags(self) -> dict[str, Any]:
        """Dotted path -> value of the settings that have a typed flag."""
        return {
            declaration.path: value
            for name, value in self.context.params.items()
            if value is not None and (declaration := declaration_of(name)) is not None
        }

    @property
    def typed(self) -> dict[str, Any]:
        """The parameters on the command line: settings by their dotted path, others by their name."""
        return {
            name.replace("__", "."): value
            for name, value in self.context.params.items()
            if (source := self.context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
        }

    def written(self, names: Collection[str]) -> str:
        """Return parameters as they are written on a command line: `--set, --split`."""
        return ", ".join(sorted(self._names[name] for name in names))

    def repeat(self, *names: str) -> str:
        """Return parameters of the command line as they are typed, for another command; a blank before each.

        Args:
            names: Settings by their dotted path, or parameters; those that are not given are left out.
        """
        words: list[str] = []
        for name in names:
            value = self.typed.get(name)
            for each in value if isinstance(value, (list, tuple)) else [value]:
                words += [] if each is None else [self._names[name], str(each)]
        return "".join(f" {shlex.quote(word)}" for word in words)

    @property
    def _names(self) -> dict[str, str]:
        parameters = self.context.command.params
        return {(parameter.name or "").replace("__", "."): parameter.opts[0] for parameter in parameters}

    def quick(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the counts of `--quick-test` without those that a flag gives; none where it is not asked for."""
        if not self.context.params["quick_test"]:
            return {}
        return {path: count for path, count in counts.items() if path not in self.flags}

    def load(
        self,
        extra: Mapping[str, Any] = MappingProxyType({}),
        *,
        files: Sequence[str] | None = None,
        quiet: bool = False,
        purpose: Purpose | None = None,
        assume_cuda: bool = False,
    ) -> Loaded:
        """Resolve the settings of a command, plan where engine and learner run, and set up its logs.

        Lines on stderr name the backends and the placement that were chosen, unless `--json` or `--quiet` is given.

        Args:
            extra: Further overrides by dotted path, such as an argument that sets a setting; None is none.
            files: Settings files in place of those of `--config`.
            quiet: The command uses no backend, so nothing is printed.
            purpose: What the command runs; None: neither engine nor learner, so nothing is planned.
            assume_cuda: Choose backends as on a machine with CUDA devices and vLLM.

        Raises:
            ConfigError: A setting is unknown or wrong, or what is to run does not fit on this machine.
            UsageError: A flag would have no effect, or gives the same setting as `--set`.
        """
        from finqa_cli.extend import registry

        flags = self.flags
        loaded = load_settings(
            flags={**flags, **extra},
            typed={path: self._names[path] for path in flags},
            files=self.files if files is None else files,
            assignments=self.assignments,
            registered={(component.kind, component.name) for component in registry().components()},
            modelless=[component.name for component in registry().components("engine") if component.modelless],
            policies={part.name: part.policy for part in registry().components("environment") if part.policy},
            assume_cuda=assume_cuda,
        )
        self._check_snapshot(loaded.settings.environment.name)
        _ask_for_sandboxes(loaded.settings)
        logs.configure()
        shown = not (quiet or self.as_json or self.quiet)
        if shown and loaded.choices.reasons:
            environment = registry().find("environment", loaded.settings.environment.name)
            if line := loaded.choices.line(sandboxless=environment.sandboxless):
                print(line, file=sys.stderr)
        if purpose is None:
            run = loaded.settings.run.model_copy(update={"placed": tuple(sorted(loaded.undecided))})
            return replace(loaded, settings=loaded.settings.model_copy(update={"run": run}))
        from finqa_cli.placement.placement_types import plan_line
        from finqa_cli.wiring.placing import place

        placed = place(loaded.settings, loaded.undecided, purpose)
        if placed.plan.per_device and shown:
            print(f"placement: {plan_line(placed.plan, placed.settings.engine.name)}", file=sys.stderr)
        return replace(loaded, settings=placed.settings, plan=placed.plan)

    def _check_snapshot(self, environment: str) -> None:
        """Raise UsageError when a snapshot is named by a flag and the environment has none."""
        from finqa_cli.extend import registry

        named = [name for name in ("data.snapshot", "snapshot") if self.typed.get(name) is not None]
        if not named or "environment__name" not in self.context.params:
            return  # a command about snapshots only, whichever environment ./finqa.toml names
        if registry().find("environment", environment).snapshotless:
            flag = self.written(named)
            raise UsageError(
                f"Environment {environment!r} has no snapshot, so that {flag} would have no effect.",
                remedy=f"leave {flag} out; --data names a file of tasks",
            )

    def note(self, text: str) -> None:
        """Print a line on stderr, unless `--json` or `--quiet` is given."""
        if not (self.as_json or self.quiet):
            print(Masker()(text), file=sys.stderr)

    def warn_of_project(self, settings: Settings) -> None:
        """Print that `--project` has no effect, when no tracker files runs under it."""
        if "run.project" in self.flags and not settings.trackers:
            self.note(
                "warning: --project names what trackers file the run under, and there is none; add --tracker wandb"
            )

    def check_free(self, run: Path, *, command: str, free: Collection[str] = ()) -> dict[str, Any]:
        """Return the parameters on the command line, of which `--resume` takes few: other settings are another run.

        Args:
            run: Folder to resume.
            command: The command as it is typed.
            free: Parameters that it takes beside `--resume`, `--json` and `--quiet`.

        Raises:
            UsageError: Another one is given.
        """
        if refused := set(self.typed) - {"resume", "as_json", "quiet", *free}:
            raise UsageError(
                f"A resumed run keeps its settings; --resume does not take {self.written(refused)}.",
                remedy=f"finqa {command} --resume {shlex.quote(str(run))}",
            )
        return self.typed

    def check_resumed(self, run: Path, *, command: str) -> dict[str, Any]:
        """Return the parameters on the command line, for a run of this command that is to be resumed.

        Raises:
            UsageError: A parameter is given that a resumed run does not take.
            ConfigError: It is a run of another command.
            DataError: The folder is no run.
        """
        typed = self.check_free(
            run, command=command, free=[path for path, each in DECLARATIONS.items() if each.about.resumable]
        )
        if not (run / "run.json").is_file():
            raise DataError(
                f"{run} is no run folder: it has no run.json.",
                remedy=f"finqa {command} --resume RUN, with a folder that `finqa {command}` wrote",
            )
        if (theirs := read_run(run).get("command")) != command:
            raise ConfigError(
                f"{run} is a run of `finqa {theirs}`, not of `finqa {command}`.",
                remedy=f"finqa {theirs} --resume {shlex.quote(str(run))}"
                if theirs in RESUMABLE
                else f"the same command with a folder that `finqa {command}` wrote",
            )
        logs.configure()
        return typed

    def stored_settings(self, run: Path, purpose: Purpose | None) -> Settings:
        """Return the settings of a run, with the number of learner processes of the command line, placed again.

        Args:
            run: Its folder.
            purpose: What the command runs; None: nothing is placed.

        Raises:
            UsageError: `--learner-processes` is neither a number nor `auto`.
            ConfigError: They are of another version of finqa, or it does not fit on this machine.
        """
        from finqa_cli.wiring.placing import place_again

        settings = from_public_dict(read_settings(run))
        limits = {path.removeprefix("run."): value for path, value in self.flags.items() if path.startswith("run.max_")}
        settings = settings.model_copy(update={"run": settings.run.model_copy(update=limits)})
        path = "train.learner_processes"
        if (wanted := self.flags.get(path)) is not None:
            if wanted != AUTO and not (wanted.isdecimal() and int(wanted)):
                raise UsageError("--learner-processes takes a number above 0, or auto.")
            placed = {*settings.run.placed, path} if wanted == AUTO else {*settings.run.placed} - {path}
            count = 1 if wanted == AUTO else int(wanted)
            settings = settings.model_copy(
                update={
                    "train": settings.train.model_copy(update={"learner_processes": count}),
                    "run": settings.run.model_copy(update={"placed": tuple(sorted(placed))}),
                }
            )
        return settings if purpose is None else place_again(settings, purpose)


def stored_parameter(run: Path, name: str, command: str) -> Any:
    """Return a parameter of a run from its manifest; paths are usable in this working directory.

    Raises:
        DataError: The manifest is not there.
    """
    try:
        value = json.loads((run / MANIFEST).read_text(encoding="utf-8"))["parameters"][name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{run} was ended before it wrote its parameters ({error!r}).",
            remedy=f"`finqa {command}` with another --run-dir; this folder holds nothing to resume",
        ) from error
    if isinstance(value, list):
        return [located(run, each) if isinstance(each, str) else each for each in value]
    return located(run, value) if isinstance(value, str) else value


def shown_counts(counts: Mapping[str, Any]) -> str:
    """Return the counts of `--quick-test` as flags, for its help."""
    return ", ".join(f"{DECLARATIONS[path].about.flags.split()[0]} {count}" for path, count in counts.items())


def _ask_for_sandboxes(settings: Settings) -> None:
    """Ask before very many sandboxes.

    Raises:
        ConfigError: There is no terminal to ask on, or the answer is no.
    """
    asked, most = settings.pool.sandboxes, settings.pool.ask_above
    if asked <= most:
        return
    interactive = sys.stdin.isatty() and sys.stderr.isatty()
    if not (interactive and typer.confirm(f"Start up to {asked:,} sandboxes?", err=True)):
        raise ConfigError(
            f"{asked:,} sandboxes are more than a run starts without being asked (pool.ask_above={most:,}).",
            remedy=f"--sandboxes with a smaller number, or --set pool.ask_above={asked}",
        )
