"""`finqa plugins new` and `finqa plugins check`: a package for your own component, and its contract."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.plugins import app
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import offers
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.contracts import ChatEngine, Environment, TrackerContext
from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.extend import Component, registry
from finqa_cli.extend.contract_check import (
    CheckedKind,
    Promise,
    check_parameters,
    registered_kind,
    run_suite,
    with_place,
)
from finqa_cli.extend.plugin_calls import definition
from finqa_cli.extend.scaffold import command_of, write_package
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.settings.schema import AUTO
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.build import (
    make_call_format,
    make_codec,
    make_engine,
    make_learner,
    make_optimizer,
    make_provider,
    make_reward,
    make_tracker,
    open_environment,
)
from finqa_cli.wiring.policies import resolve

MARKS = {"passed": "ok     ", "failed": "FAILED ", "skipped": "skipped"}


@app.command()
@offers(general=("as_json",))
def new(
    line: CommandLine,
    kind: Annotated[CheckedKind, typer.Argument(help="Kind of the component.")],
    name: Annotated[str, typer.Argument(help="Name of the component, such as my-reward.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write to.", show_default="finqa-NAME in this folder")
    ] = None,
) -> None:
    """Write a package with a component that works, its registration and a test of its contract.

    Exit codes: 0 ok, 74 the folder is there already or cannot be written, 78 the name is none for a package.

    Example: finqa plugins new reward my-reward
    """
    folder = out or Path(f"finqa-{name}")
    files = write_package(kind.value, name, folder)
    then = [
        f"pip install -e {shlex.quote(f'{folder}[dev]')}",
        f"finqa plugins check {name}",
        command_of(kind.value, name),
    ]
    document = {"folder": str(folder), "files": [str(file) for file in files], "next": then}
    shown = [f"Wrote {plural(len(files), 'file')} to {folder}. Then:", *(f"  {command}" for command in then)]
    emit(document, as_json=line.as_json, text="\n".join(shown))


@app.command()
@offers("data.path", "model", general=("config", "assign", "as_json"))
def check(
    line: CommandLine,
    name: Annotated[str, typer.Argument(help="Name of a component, or the path of an environment's file.")],
    kind: Annotated[
        CheckedKind | None, typer.Option("--kind", help="Its kind.", show_default="the only one of this name")
    ] = None,
) -> None:
    """Check a component against the contract of its kind: import, parameters, and the suite that all of a kind pass.

    `--set` gives it options, as in other commands. Needs the extra `kit`. Exit codes: 0 it keeps the contract, 1 it
    does not, 78 there is no such component, an option is wrong, or pytest is missing.

    Example: finqa plugins check my-reward --set reward.options.tolerance=0.05
    """
    component = _find(name, registered_kind(kind.value) if kind is not None else None)
    report = registry().report_of(component)
    settings = _settings(line, component)
    make = _makers(settings, component)
    promises = [Promise(name="the import of the plugin is fast and prints nothing", status="passed")]
    if report is not None and report.warnings:
        promises = [Promise(name=promises[0].name, status="failed", detail="; ".join(report.warnings))]
    subject = make["subject"](settings.data.home)
    promises += check_parameters(subject)
    promises += run_suite("chat_engine" if isinstance(subject, ChatEngine) else component.kind, make)
    promises = [with_place(each, definition(subject.__class__)) for each in promises]
    document = {
        "kind": component.kind,
        "name": component.name,
        "plugin": report.shown if report is not None else "",
        "kept": not any(promise.status == "failed" for promise in promises),
        "tools": _tools(subject),
        "promises": [{"name": each.name, "status": each.status, "detail": each.detail} for each in promises],
    }
    emit(document, as_json=line.as_json, text=lambda: _print(document, promises))
    if not document["kept"]:
        raise typer.Exit(1)


def _find(name: str, kind: str | None) -> Component:
    """Return the component of a name. A name that is not registered may be an environment's file or module."""
    found = [part for part in registry().components() if part.name == name and kind in (part.kind, None)]
    if len(found) > 1:
        kinds = [part.kind for part in found]
        raise ConfigError(
            f"{name!r} is the name of several components: {', '.join(kinds)}.",
            remedy=f"finqa plugins check {shlex.quote(name)} --kind {kinds[0]}",
        )
    return found[0] if found else registry().find(kind or "environment", name)


def _settings(line: CommandLine, component: Component) -> Settings:
    named = component.kind in ("environment", "reward", "optimizer", "sandbox", "engine", "codec", "learner")
    return line.load({f"{component.kind}.name": component.name} if named else {}, quiet=True).settings


def _makers(settings: Settings, component: Component) -> Mapping[str, Callable[[Path], object]]:
    """Return a factory for each fixture of the suite; it is called with an empty folder, or that of a model."""
    name, reporter = component.name, Reporter()
    options = next((choice.options for choice in settings.trackers if choice.name == name), {})
    makers: dict[str, Callable[[Path], object]] = {
        "environment": lambda _: open_environment(settings, reporter),
        "reward": lambda _: make_reward(settings),
        "call_format": lambda _: make_call_format(name),
        "optimizer": lambda _: make_optimizer(settings),
        "tracker": lambda folder: make_tracker(name, options, TrackerContext(run_dir=folder, run_id="check")),
        "sandbox": lambda _: make_provider(settings),
        "engine": lambda folder: _engine(settings, folder),
        "codec": lambda _: make_codec(settings, _model(settings)),
        "learner": lambda model: make_learner(settings, str(model)),
    }
    return {
        "subject": makers[component.kind],
        "provider": makers["sandbox"],
        "make": lambda folder: lambda model=folder: makers[component.kind](model),
        "spec": lambda _: open_environment(settings, reporter).sandbox_spec(),
        "model": lambda _: _model(settings),
        "loss": lambda _: make_optimizer(settings).loss(),
    }


def _engine(settings: Settings, model: Path) -> object:
    """Return the engine for a model folder; a modelless engine does not read it."""
    return make_engine(settings, PolicyVersion(number=0, model=str(model)), open_environment(settings, Reporter()))


def _model(settings: Settings) -> str:
    """Return the model of the settings, which codecs are checked on; the embedded one unless another is named."""
    named = settings.model.name
    return resolve("embedded" if named == AUTO else named).model


def _tools(subject: object) -> list[str]:
    """Return the names of the tools in the opening of an environment's first task; [] if only an episode has them."""
    if not isinstance(subject, Environment):
        return []
    try:
        prompt = subject.opening(subject.tasks(subject.splits()[0])[0])
    except (FinqaError, IndexError):  # the suite reports what is wrong
        return []
    return [tool.name for tool in prompt.tools] if prompt is not None else []


def _print(document: Mapping[str, Any], promises: list[Promise]) -> None:
    print(f"{document['kind']} {document['name']} of {document['plugin']}")
    if document["tools"]:
        print(f"  tools    {', '.join(document['tools'])}")
    shown: set[str] = set()
    for promise in promises:
        repeated = promise.status == "failed" and promise.detail in shown
        detail = ": the same error" if repeated else f": {promise.detail}" if promise.detail else ""
        shown.add(promise.detail)
        print(f"  {MARKS[promise.status]}  {promise.name}{detail}")
    failed = sum(promise.status == "failed" for promise in promises)
    skipped = sum(promise.status == "skipped" for promise in promises)
    unseen = f", but {plural(skipped, 'rule')} could not be tested" if skipped else ""
    print(f"It violates {plural(failed, 'rule')} of its contract." if failed else f"It meets its contract{unseen}.")
