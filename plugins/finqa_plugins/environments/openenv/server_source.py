"""How a server is started: from a folder or module with an ASGI app, or from an image."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import yaml

from finqa_cli.errors import ConfigError
from finqa_cli.types import ServerSource, ServerSpec
from finqa_plugins.environments.openenv.config import OpenEnvConfig

PORT = 8000
OPENENV = "openenv-core[core]"


def server_spec(config: OpenEnvConfig) -> ServerSpec | None:
    """Return the sandbox of a server; None where the options give the address of a running one.

    Raises:
        ConfigError: There is no such folder or Python.
    """
    if config.url:
        return None
    if config.image:
        return ServerSpec(image=config.image, port=PORT, environment=config.variables)
    app, folder = _app(config.module)
    # Not resolved: the link in a virtual environment is what makes it one.
    python = Path(config.python).expanduser().absolute() if config.python else Path(sys.executable)
    if not python.is_file():
        raise ConfigError(
            f"There is no Python {config.python}.", remedy="--set environment.options.python=VENV/bin/python"
        )
    root = folder.parent if folder else Path.cwd()
    command = (str(python), "-m", "uvicorn", app, "--app-dir", str(root), "--host", "{host}", "--port", "{port}")
    source = ServerSource(folder=folder, app=app, requirements=_requirements(folder)) if folder else None
    return ServerSpec(
        command=(*command, "--log-level", "warning"), source=source, port=PORT, environment=config.variables
    )


def _app(module: str) -> tuple[str, Path | None]:
    """The app as uvicorn names it, and its folder; None for an app that is installed."""
    folder = Path(module).expanduser()
    if not folder.is_dir():
        if ":" not in module or "/" in module:
            raise ConfigError(
                f"There is no folder {module}, and it does not name an app as MODULE:NAME.",
                remedy="--set environment.options.module=package.server.app:app, or a folder with server/app.py",
            )
        return module, None
    folder = folder.resolve()
    app = _named_app(folder / "openenv.yaml")
    if not (folder / f"{app.partition(':')[0].replace('.', '/')}.py").is_file():
        raise ConfigError(
            f"{folder} is no environment of OpenEnv: it has no {app.partition(':')[0].replace('.', '/')}.py.",
            remedy="name the folder with server/app.py",
        )
    return f"{folder.name}.{app}", folder


def _named_app(file: Path) -> str:
    """The app that openenv.yaml names, as seen from its folder."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        document = {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", remedy=f"correct {file}") from error
    app = document.get("app") if isinstance(document, Mapping) else None
    return str(app or "server.app:app")


def _requirements(folder: Path) -> tuple[str, ...]:
    """What the folder's own project requires."""
    file = folder / "pyproject.toml"
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return (OPENENV,)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", remedy=f"correct {file}") from error
    needed = (document.get("project") or {}).get("dependencies")
    return tuple(needed) if isinstance(needed, list) and all(isinstance(one, str) for one in needed) else (OPENENV,)
