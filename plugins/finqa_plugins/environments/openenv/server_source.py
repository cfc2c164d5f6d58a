"""How a server is started: from a folder or module with an ASGI app, or from an image."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from finqa_cli.documents import parse_toml, parse_yaml
from finqa_cli.errors import ConfigError
from finqa_cli.types import ServerSource, ServerSpec
from finqa_plugins.environments.openenv.config import OpenEnvConfig

PORT = 8000
OPENENV = "openenv>=0.10"
DOCKERFILES = ("server/Dockerfile", "Dockerfile")
"""Where OpenEnv's tools look for the Dockerfile of an environment, in this order."""

SERVE = Path(__file__).with_name("serve_app.py")
"""Program of a server's process."""


def server_spec(config: OpenEnvConfig) -> ServerSpec | None:
    """Return the specification of the server's sandbox; None if the options name a running server.

    Raises:
        ConfigError: There is no such folder, Dockerfile or Python, or a file of the folder cannot be read.
    """
    if config.url:
        return None
    if config.image:
        return ServerSpec(image=config.image, port=PORT, environment=config.variables)
    folder = _folder(config.module)
    # Not resolved: Python finds its virtual environment by the path of the link.
    python = Path(config.python).expanduser().absolute() if config.python else Path(sys.executable)
    if not python.is_file():
        raise ConfigError(
            f"There is no Python {config.python}.", remedy="--set environment.options.python=VENV/bin/python"
        )
    folders, app, port, source = [Path.cwd()], config.module, PORT, None
    if folder is not None:
        described = _described(folder / "openenv.yaml")
        root, inner = _located(folder, str(described.get("app") or "server.app:app"))
        # As in the environment's own image, where the package is installed and PYTHONPATH names its folder.
        folders, app = list(dict.fromkeys([folder.parent, folder, root])), f"{folder.name}.{inner}"
        port = described["port"] if isinstance(described.get("port"), int) else PORT
        source = _source(config, folder, inner)
    path = os.pathsep.join(map(str, folders))
    command = (str(python), str(SERVE), path, app, "--host", "{host}", "--port", "{port}")
    return ServerSpec(
        command=(*command, "--log-level", "warning"),
        source=source,
        port=port,
        environment=config.variables,
        remedy=f"install what its last output names for {python}, or name a Python that has it: "
        "--set environment.options.python=VENV/bin/python",
    )


def _located(folder: Path, app: str) -> tuple[Path, str]:
    """Return the folder from which the manifest names its app, and the app's name from the environment's folder.

    Most manifests name it from their own folder, some from the root of their repository.

    Raises:
        ConfigError: There is no such file.
    """
    module, _, attribute = app.partition(":")
    file = Path(*module.split(".")).with_suffix(".py")
    for root in (folder, *folder.parents[:2]):
        if (root / file).is_file() and (root / file).is_relative_to(folder):
            return root, f"{'.'.join((root / file).relative_to(folder).with_suffix('').parts)}:{attribute}"
    raise ConfigError(
        f"{folder} is not an OpenEnv environment: it has no {file}.", remedy="name the folder with server/app.py"
    )


def _folder(module: str) -> Path | None:
    """Return the folder that the option names; None if it names an installed app."""
    folder = Path(module).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if ":" not in module or "/" in module:
        raise ConfigError(
            f"There is no folder {module}, and it does not name an app as MODULE:NAME.",
            remedy="--set environment.options.module=package.server.app:app, or a folder with server/app.py",
        )
    return None


def _described(file: Path) -> Mapping[str, Any]:
    """Return the contents of openenv.yaml; empty if there is none."""
    try:
        document = parse_yaml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", remedy=f"correct {file}") from error
    return document if isinstance(document, Mapping) else {}


def _source(config: OpenEnvConfig, folder: Path, app: str) -> ServerSource:
    """Return what providers build images from.

    Raises:
        ConfigError: A Dockerfile is wanted and there is none, or pyproject.toml cannot be read.
    """
    found = next((folder / name for name in DOCKERFILES if (folder / name).is_file()), None)
    if config.recipe == "dockerfile" and found is None:
        raise ConfigError(
            f"{folder} has no {' and no '.join(DOCKERFILES)}.", remedy="--set environment.options.recipe=packages"
        )
    project = _project(folder / "pyproject.toml")
    return ServerSource(
        folder=folder,
        app=f"{_package(project) or folder.name}.{app}",
        requirements=_requirements(folder, project),
        project="project" in project,
        dockerfile=None if config.recipe == "packages" else found,
    )


def _project(file: Path) -> Mapping[str, Any]:
    """Return the document of pyproject.toml; empty if there is none."""
    try:
        return parse_toml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", remedy=f"correct {file}") from error


def _package(project: Mapping[str, Any]) -> str:
    """Return the package name that setuptools gives to the project's folder; empty if it gives none."""
    folders = project.get("tool", {}).get("setuptools", {}).get("package-dir", {})
    return next((name for name, folder in folders.items() if name and folder in (".", "./")), "")


def _requirements(folder: Path, project: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the folder's project requires, or else what server/requirements.txt lists."""
    needed = (project.get("project") or {}).get("dependencies")
    if isinstance(needed, list) and all(isinstance(one, str) for one in needed):
        return tuple(needed)
    file = folder / "server" / "requirements.txt"
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", remedy=f"correct {file}") from error
    return tuple(line for line in lines if line and not line.startswith("#")) or (OPENENV,)
