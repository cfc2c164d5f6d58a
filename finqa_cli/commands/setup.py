"""`finqa setup`: the environment of a component whose packages are incompatible with those of finqa."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import CommandApp, offers
from finqa_cli.commands.shared.output import emit, progress
from finqa_cli.errors import ConfigError, InterruptedRun
from finqa_cli.extend import Component, registry
from finqa_cli.provisioning.venv_install import InstallerName
from finqa_cli.provisioning.venv_setup import Options, set_up

app = CommandApp()


@app.command(epilog="Example: finqa setup vllm")
@offers(general=("config", "assign", "as_json"))
def main(
    line: CommandLine,
    name: Annotated[str, typer.Argument(help="Component with its own virtual environment: vllm.")],
    requirements: Annotated[
        Path | None,
        typer.Option("--requirements", "-r", help="Requirements file instead of the tested pins.", show_default=False),
    ] = None,
    no_deps: Annotated[
        bool,
        typer.Option(
            "--no-deps", help="Install exactly the packages of the file; only torch is installed with its dependencies."
        ),
    ] = False,
    index_url: Annotated[
        str, typer.Option("--index-url", help="A package index, or a folder of wheels.", show_default=False)
    ] = "",
    python: Annotated[
        Path | None,
        typer.Option("--python", help="Python interpreter instead of that of finqa.", show_default=False),
    ] = None,
    installer: Annotated[str, typer.Option("--installer", help="pip, uv, or auto: uv if it is installed.")] = "auto",
    no_start: Annotated[bool, typer.Option("--no-start", help="Check without starting a server.")] = False,
    recreate: Annotated[bool, typer.Option("--recreate", help="Replace an existing environment by a new one.")] = False,
) -> None:
    """Make the environment of a component below FINQA_HOME, check it, and make finqa use it.

    Can be interrupted and called again: it continues. A finished environment is recognised at once; other pins make
    it again. pip's and uv's own configuration applies (PIP_INDEX_URL, UV_INDEX_URL).

    Exit codes: 0 done, 1 the installer or the check failed, 69 the package index cannot be reached, 74 no space,
    78 wrong Python, or another process is setting it up, 130 interrupted.
    """
    if installer not in ("auto", "pip", "uv"):
        raise typer.BadParameter(f"{installer!r} must be auto, pip or uv", ctx=line.context, param_hint="--installer")
    wanted = Options(
        requirements=requirements.absolute() if requirements else None,
        no_deps=no_deps,
        installer=cast(InstallerName, installer),
        index=index_url,
        python=python,
        recreate=recreate,
        start=not no_start,
    )
    component, home = _component(name), line.load(quiet=True).settings.data.home
    with progress(as_json=line.as_json) as reporter:
        try:
            venv, made = set_up(component, home, wanted, reporter)
        except KeyboardInterrupt:
            raise InterruptedRun("Interrupted; installed packages are kept.", remedy="the same command again") from None
    document: dict[str, Any] = {"name": name, "python": str(venv.python), "made": made, "versions": dict(venv.versions)}
    versions = ", ".join(f"{package} {version}" for package, version in venv.versions.items())
    state = "is set up" if made else "is set up already"
    emit(document, as_json=line.as_json, text=f"{name} {state}: {versions} in {venv.python.parents[1]}")


def _component(name: str) -> Component:
    having = [component for component in registry().components() if component.venv is not None]
    for component in having:
        if component.name == name:
            return component
    names = ", ".join(component.name for component in having) or "none"
    raise ConfigError(f"There is nothing to set up for {name!r}. Known: {names}.", remedy="finqa setup vllm")
