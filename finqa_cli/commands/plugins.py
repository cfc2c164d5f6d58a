"""`finqa plugins`: what is installed, whether it is ready or broken, and what options it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, AsJson, CommandApp
from finqa_cli.commands.shared.output import emit, print_table
from finqa_cli.errors import ConfigError
from finqa_cli.extend import KINDS, Component, PluginReport, readiness, registry
from finqa_cli.extend.wrong_names import did_you_mean
from finqa_cli.masking import MASK, is_secret
from finqa_cli.settings import Settings, to_public_dict

app = CommandApp("Show, check and create plugins.", epilog=EXIT_CODES, needs_command=False)


@app.callback(invoke_without_command=True)
def overview(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show what is installed, ready or broken. `finqa plugins show NAME` has the options of one.

    `ready` can be used here as finqa.toml and the environment are; otherwise the status names what is missing. Services
    are not called; `finqa doctor` does that. Exit code 0 even when a plugin is broken: the others work.
    """
    if ctx.invoked_subcommand is None:
        document = _overview(_settings(ctx))
        emit(document, as_json=as_json, text=lambda: _print_overview(document))


@app.command()
def show(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of a component or a plugin, such as grpo or local_sandbox.")],
    as_json: AsJson = False,
) -> None:
    """Show the components of this name or plugin: options with defaults and meaning, and hooks.

    Exit codes: 0 ok, 78 there is nothing of this name.

    Example: finqa plugins show grpo
    """
    found = [(report, component) for report, component in _components() if name in (component.name, report.name)]
    if not found and (component := _found_by_name(name)) is not None:
        report = registry().report_of(component)
        found = [(report, component)] if report is not None else []
    reports = [report for report in registry().reports if report.name == name]
    if not found and not reports:
        raise _unknown(name)
    owners = {report.name: report for report in [*reports, *(report for report, _ in found)]}
    settings = _settings(ctx)
    document = {
        "components": [_component(report, component, settings, details=True) for report, component in found],
        "plugins": [_plugin(report) for report in owners.values()],
    }
    emit(document, as_json=as_json, text=lambda: _print_details(document))


def _found_by_name(name: str) -> Component | None:
    """Return a component that is not registered, but that a plugin finds by this name."""
    for kind in ("engine", "learner", "environment"):
        with contextlib.suppress(ConfigError):  # there may be one of another kind
            if (component := registry().first("find_component", Component, kind=kind, name=name)) is not None:
                return component
    return None


def _components() -> list[tuple[PluginReport, Component]]:
    pairs = [(report, component) for report in registry().reports for component in report.components]
    return sorted(pairs, key=lambda pair: (KINDS.index(pair[1].kind), pair[1].name))


def _settings(ctx: typer.Context) -> dict[str, Any]:
    """Return the settings as plugins get them; the defaults where a layer is wrong, which other commands report."""
    try:
        return to_public_dict(CommandLine(ctx).load(quiet=True).settings)
    except ConfigError:
        return to_public_dict(Settings())


def _overview(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "components": [_component(report, component, settings, details=False) for report, component in _components()],
        "plugins": [_plugin(report) for report in registry().reports],
    }


def _plugin(report: PluginReport) -> dict[str, Any]:
    module = registry().manager.get_plugin(report.name)
    callers = (registry().manager.get_hookcallers(module) if module else None) or []
    return {
        "name": report.name,
        "module": report.module,
        "distribution": report.distribution,
        "version": report.version,
        "status": "broken" if report.error else "ok",
        "error": report.error,
        "left_out": [f"{kind} {name}: {reason}" for (kind, name), reason in report.left_out.items()],
        "warnings": list(report.warnings),
        "hooks": sorted(caller.name for caller in callers),
    }


def _component(
    report: PluginReport, component: Component, settings: Mapping[str, Any], *, details: bool
) -> dict[str, Any]:
    found = readiness(registry(), component, settings)
    failed = [check.detail for check in found if check.status == "fail"]
    document: dict[str, Any] = {
        "kind": component.kind,
        "name": component.name,
        "status": "; ".join(failed or ["ready", *(check.detail for check in found)]),
        "ready": not failed,
        "summary": component.summary,
        "plugin": report.name,
        "remedy": next((check.remedy for check in found if check.remedy), ""),
    }
    return {**document, "options": _component_options(component)} if details else document


def _component_options(component: Component) -> list[dict[str, Any]] | None:
    """Return its options, [] when it has none, None when its config class cannot be imported on this machine."""
    try:
        model = registry().config_class(component)
    except ImportError:
        return None
    fields = model.model_fields.items() if model else ()
    return [_field(name, info) for name, info in fields if name not in component.given]


def _field(name: str, info: Any) -> dict[str, Any]:
    default = None if info.default is PydanticUndefined else info.default
    if info.default_factory is not None:
        default = info.get_default(call_default_factory=True)
    if isinstance(default, SecretStr) or (default and is_secret(name)):
        default = MASK
    annotation = info.annotation
    kind = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
    return {
        "name": name,
        "type": kind,
        "default": default,
        "required": info.is_required(),
        "doc": info.description or "",
    }


def _print_overview(document: Mapping[str, Any]) -> None:
    rows = [[part[key] for key in ("kind", "name", "status", "summary")] for part in document["components"]]
    print_table(("kind", "name", "status", "summary"), rows)
    for plugin in document["plugins"]:
        if plugin["status"] == "broken":
            print(f"broken  {plugin['name']} ({plugin['module']}): {' '.join(plugin['error'].split())}")
        for reason in plugin["left_out"]:
            print(f"left out  of plugin {plugin['name']} ({plugin['module']}): {reason}")
        for warning in plugin["warnings"]:
            print(f"warning  plugin {plugin['name']} ({plugin['module']}): {warning}")


def _print_details(document: Mapping[str, Any]) -> None:
    for component in document["components"]:
        print(f"{component['kind']} {component['name']}: {component['summary']}")
        print(f"  plugin {component['plugin']}, {component['status']}")
        if component["remedy"]:
            print(f"  fix: {component['remedy']}")
        _print_options(component["kind"], component["name"], component["options"])
    for plugin in document["plugins"]:
        version = f"{plugin['distribution']} {plugin['version']}".strip() or "no distribution"
        print(f"plugin {plugin['name']}: {plugin['module']} ({version}), {plugin['status']}")
        print(f"  hooks: {', '.join(plugin['hooks']) or 'none'}")
        if plugin["error"]:
            print(f"  reason: {plugin['error']}")
        for line in [*plugin["left_out"], *plugin["warnings"]]:
            print(f"  {line}")


def _print_options(kind: str, name: str, fields: list[dict[str, Any]] | None) -> None:
    if fields is None:
        print("  options: known after its packages are installed")
    elif not fields:
        print("  options: none")
    else:
        print(f"  options, as {option_flag(kind, name)}:")
        headers = ("name", "type", "default", "meaning")
        rows = [[part["name"], part["type"], _default(part), part["doc"]] for part in fields]
        print_table(headers, rows)


def option_flag(kind: str, name: str) -> str:
    """Return how an option of a component is given on a command line."""
    if kind == "tracker":  # a run may have several
        return f"""--set 'trackers=[{{name="{name}",options={{NAME="VALUE"}}}}]'"""
    return f"--set {kind}.options.NAME=VALUE"


def _default(field: Mapping[str, Any]) -> object:
    return "required" if field["required"] else field["default"]


def _unknown(name: str) -> ConfigError:
    known = sorted({component.name for _, component in _components()} | {one.name for one in registry().reports})
    message = f"There is no component or plugin named {name!r}.{did_you_mean(name, known)}{registry().broken()}"
    return ConfigError(message, remedy="finqa plugins")
