"""OpenEnv's names, imported without the libraries that take seconds and that this server never uses.

`openenv` (0.10 or newer) and its predecessor `openenv-core` (0.3) both provide them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


class _EmptyNames(ModuleType):
    """A module in which every public name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return type(name, (), {})


@contextlib.contextmanager
def _unused_libraries() -> Iterator[None]:
    """Keep OpenEnv from importing libraries that take seconds and that this server never uses.

    gradio is for its web interface, and OpenEnv works without it. fastmcp is for environments that contain an MCP
    server, which ours does not: OpenEnv only needs the names that it imports.
    """
    names = ("fastmcp", "fastmcp.client", "fastmcp.client.client", "mcp", "mcp.types")
    substitutes: dict[str, ModuleType | None] = {name: _EmptyNames(name) for name in names if name not in sys.modules}
    if "gradio" not in sys.modules:
        substitutes["gradio"] = None  # with None, importing the module fails
    sys.modules.update(substitutes)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in substitutes:
            sys.modules.pop(name, None)


os.environ["ENABLE_WEB_INTERFACE"] = "false"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
with _unused_libraries():
    from openenv.core.env_server import interfaces
    from openenv.core.env_server.exceptions import SessionCapacityError
    from openenv.core.env_server.http_server import HTTPEnvServer
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.mcp_types import (
        CallToolAction,
        CallToolObservation,
        ListToolsAction,
        ListToolsObservation,
        Tool,
        ToolError,
        ToolErrorType,
    )
    from openenv.core.env_server.types import Action, ConcurrencyConfig, EnvironmentMetadata, Observation, State
    from openenv.core.utils import run_async_safely

HAS_TASKS: bool = hasattr(interfaces, "TaskProvider")
"""Whether this OpenEnv has the Task API, and lets a websocket join a session; openenv-core 0.3 has neither."""

__all__ = [
    "HAS_TASKS",
    "Action",
    "CallToolAction",
    "CallToolObservation",
    "ConcurrencyConfig",
    "Environment",
    "EnvironmentMetadata",
    "HTTPEnvServer",
    "ListToolsAction",
    "ListToolsObservation",
    "Observation",
    "SessionCapacityError",
    "State",
    "Tool",
    "ToolError",
    "ToolErrorType",
    "run_async_safely",
]
