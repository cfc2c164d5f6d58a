"""The parameters of a command line and the settings that follow from them, also for a resumed run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer

from finqa_cli import logs
from finqa_cli.errors import UsageError
from finqa_cli.masking import Masker
from finqa_cli.settings import Loaded, Settings
from finqa_cli.settings.declarations import Declaration
from finqa_cli.settings.layers import assignments_layer
from finqa_cli.settings.offered import is_operational, without_given
from finqa_cli.settings.schema import DECLARATIONS

if TYPE_CHECKING:
    from finqa_cli.wiring.placing import Purpose


MOST_DOTS = 2
"""Dots in the path of an option; `engine.options.prices.MODEL.input` sets a part of one."""


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
        """Return parameters of the command line as they are typed, for another command, with a space before each word.

        Args:
            names: Settings by their dotted path, or parameters; those that are not given are left out.
        """
        words: list[str] = []
        for name in names:
            value = self.typed.get(name)
            for each in value if isinstance(value, (list, tuple)) else [value]:
                words += [] if each is None else [self._names[name], str(each)]
        return "".join(f" {shlex.quote(word)}" for word in words)

    def again(self, changes: Mapping[str, object]) -> str:
        """Return this command in a new run folder with other values of some settings.

        Args:
            changes: Values by dotted path.

        Returns:
            Empty for a command that resumes a run, whose settings are fixed.
        """
        typed = {name: value for name, value in self.typed.items() if name not in (*changes, "run.dir")}
        if typed.get("resume") is not None:
            return ""
        words = [] if self.context.command.name is None else ["finqa", self.context.command.name]
        options: list[str] = []
        for parameter in self.context.command.params:
            value = typed.get((parameter.name or "").replace("__", "."))
            if value is None:
                continue
            if parameter.param_type_name == "argument":
                words += [str(each) for each in (value if isinstance(value, (list, tuple)) else [value])]
            elif isinstance(value, bool):
                options += [parameter.opts[0]] if value else list(parameter.secondary_opts[:1])
            else:
                values = value if isinstance(value, (list, tuple)) else [value]
                options += [word for each in values for word in (parameter.opts[0], str(each))]
        for path, changed in changes.items():
            options += [self._names[path], str(changed)] if path in self._names else ["--set", f"{path}={changed}"]
        return shlex.join([*words, *options])

    @property
    def _names(self) -> dict[str, str]:
        parameters = self.context.command.params
        return {(parameter.name or "").replace("__", "."): parameter.opts[0] for parameter in parameters}

    def quick(self, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the counts of `--quick-test` that no flag sets; {} if `--quick-test` is not given."""
        return without_given(counts, self.flags) if self.context.params["quick_test"] else {}

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
            extra: Further overrides by dotted path, such as an argument that sets a setting; None overrides nothing.
            files: Settings files in place of those of `--config`.
            quiet: The command uses no backend, so nothing is printed.
            purpose: What the command runs; None: neither engine nor learner, so nothing is planned.
            assume_cuda: Choose backends as on a machine with CUDA devices and vLLM.

        Raises:
            ConfigError: A setting is unknown or wrong, or the run does not fit on this machine.
            UsageError: A flag would have no effect, or gives the same setting as `--set`.
        """
        from finqa_cli.extend import registry
        from finqa_cli.placement.placement_types import plan_line
        from finqa_cli.wiring.command_settings import check_sandboxes, place_settings, read_layers

        flags = self.flags
        loaded = read_layers(
            flags={**flags, **extra},
            typed={path: self._names[path] for path in flags},
            files=self.files if files is None else files,
            assignments=self.assignments,
            assume_cuda=assume_cuda,
        )
        self._check_snapshot(loaded.settings.environment.name)
        check_sandboxes(loaded.settings, _confirm_sandboxes)
        logs.configure()
        shown = not (quiet or self.as_json or self.quiet)
        for note in loaded.notes if shown else ():
            print(f"warning: {note}", file=sys.stderr)
        if shown and loaded.choices.reasons:
            environment = registry().find("environment", loaded.settings.environment.name)
            new_model = self.context.params.get("init") is not None
            if line := loaded.choices.line(sandboxless=environment.sandboxless, new_model=new_model):
                print(line, file=sys.stderr)
        placed = place_settings(loaded, purpose)
        if placed.plan is not None and (placed.plan.per_device or placed.plan.per_node) and shown:
            print(f"placement: {plan_line(placed.plan, placed.settings.engine.name)}", file=sys.stderr)
        return placed

    def _check_snapshot(self, environment: str) -> None:
        """Raise UsageError when a snapshot is named by a flag and the environment has none."""
        from finqa_cli.wiring.command_settings import check_snapshot

        named = [name for name in ("data.snapshot", "snapshot") if self.typed.get(name) is not None]
        if named and "environment__name" in self.context.params:
            check_snapshot(environment, self.written(named))
        # otherwise it is a command about snapshots only, whichever environment ./finqa.toml names

    def note(self, text: str) -> None:
        """Print a line on stderr, unless `--json` or `--quiet` is given."""
        if not (self.as_json or self.quiet):
            print(Masker()(text), file=sys.stderr)

    def warn_of_project(self, settings: Settings) -> None:
        """Print a warning that `--project` has no effect if there is no tracker."""
        if "run.project" in self.flags and not settings.trackers:
            self.note("warning: --project sets the project of a tracker, and there is no tracker; add --tracker wandb")

    def check_free(self, run: Path, *, command: str, free: Collection[str] = ()) -> dict[str, Any]:
        """Return the parameters on the command line. With `--resume` only a few are allowed: a run keeps its settings.

        Args:
            run: Folder to resume.
            command: The command as it is typed.
            free: Parameters that are allowed in addition to `--resume`, `--json` and `--quiet`.

        Raises:
            UsageError: A parameter is given that is not allowed.
        """
        if refused := set(self.typed) - {"resume", "as_json", "quiet", *free}:
            raise UsageError(
                f"A resumed run keeps its settings; --resume does not take {self.written(refused)}.",
                remedy=f"finqa {command} --resume {shlex.quote(str(run))}",
            )
        return self.typed

    def operational_assignments(self) -> dict[str, Any]:
        """Return the settings of `--set`, dotted path -> value, for a run that is to be resumed.

        Raises:
            UsageError: One of them can change results.
        """
        assigned = {path: value.raw for path, value in assignments_layer(self.assignments).items()}
        if wrong := [path for path in assigned if not is_operational(path) or path.count(".") > MOST_DOTS]:
            raise UsageError(
                f"A resumed run keeps its settings; {', '.join(wrong)} could change its results.",
                remedy="leave them out; sandboxes, concurrency, retries, timeouts, rates and prices can be changed",
            )
        return assigned

    def check_resumed(self, run: Path, *, command: str, free: Collection[str] = ()) -> dict[str, Any]:
        """Return the parameters on the command line, for a run of this command that is to be resumed.

        Args:
            run: Its folder.
            command: The command as it is typed.
            free: Further parameters that are allowed.

        Raises:
            UsageError: A parameter is given that a resumed run does not take.
            ConfigError: It is a run of another command.
            DataError: The folder is not a run.
        """
        from finqa_cli.wiring.command_settings import check_command, fetch_run

        typed = self.check_free(run, command=command, free=[*free, *resumable_paths()])
        logs.configure()
        fetch_run(run, typed)
        check_command(run, command)
        return typed

    def stored_settings(self, run: Path, purpose: Purpose | None) -> Settings:
        """Return the settings of a run, with the number of learner processes of the command line, placed again.

        Args:
            run: Its folder.
            purpose: What the command runs; None: nothing is placed.

        Raises:
            UsageError: `--learner-processes` is neither a number nor `auto`.
            ConfigError: The settings are of another version of finqa, or the run does not fit on this machine.
        """
        from finqa_cli.wiring import command_settings

        return command_settings.stored_settings(run, purpose, self.flags)


def resumable_paths() -> list[str]:
    """Return the settings with a flag that may change when a run is resumed."""
    return [path for path, each in DECLARATIONS.items() if each.about.resumable]


def shown_counts(counts: Mapping[str, Any]) -> str:
    """Return the counts of `--quick-test` as flags, for its help."""
    return ", ".join(f"{DECLARATIONS[path].about.flags.split()[0]} {count}" for path, count in counts.items())


def _confirm_sandboxes(count: int) -> bool:
    """Ask whether so many sandboxes are to start; without a terminal the answer is no."""
    interactive = sys.stdin.isatty() and sys.stderr.isatty()
    return interactive and typer.confirm(f"Start up to {count:,} sandboxes?", err=True)
