"""Finds environments that are named by a Python file or by `module:attribute`."""

from __future__ import annotations

import re

from finqa_cli.extend import Component, hookimpl

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@hookimpl
def find_component(kind: str, name: str) -> Component | None:
    """Return the environment in a file that ends with `.py`, or at `module:attribute`; None for other names."""
    if kind != "environment" or not (name.endswith(".py") or _MODULE.fullmatch(name)):
        return None
    package = "finqa_plugins.environments.python_file"
    return Component(
        kind="environment",
        name=name,
        target=f"{package}.python_environment:PythonEnvironment",
        config=f"{package}.config:PythonFileConfig",
        summary=f"the environment in {name}. An episode is right if the part `correct` of its reward is at least 1; "
        "without that part, if the reward is at least 1",
        given={"source": name},
        snapshotless=True,
        sandboxless=True,
    )
