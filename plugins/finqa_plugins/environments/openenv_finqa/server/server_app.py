"""The ASGI application: openenv-core's server around our environment."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from finqa_plugins.environments.openenv_finqa.server.quiet import Application, QuietWebSockets
from finqa_plugins.environments.openenv_finqa.server.server_options import ServerOptions
from finqa_plugins.environments.openenv_finqa.server.server_service import ToolService

MAX_SESSIONS = 4096


def build_app(service: ToolService, options: ServerOptions) -> Application:
    """An application that serves `/ws`, `/health`, `/metadata`, `/schema` and `/mcp`; no web interface."""
    os.environ["ENABLE_WEB_INTERFACE"] = "false"
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with _unused_libraries():
        from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
        from openenv.core.env_server.types import ConcurrencyConfig

        from finqa_plugins.environments.openenv_finqa.server.server_environment import FinQAEnvironment
        from finqa_plugins.environments.openenv_finqa.server.server_sessions import JoinableSessions, SessionInAddress
    from fastapi import FastAPI

    from finqa_plugins.environments.openenv_finqa.server.http_errors import answer_bad_requests

    app = FastAPI(title="finqa_env", version="1.0.0")
    server = JoinableSessions(
        functools.partial(FinQAEnvironment, service, options),
        CallToolAction,
        CallToolObservation,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=MAX_SESSIONS, session_timeout=options.session_timeout_s
        ),
    )
    server.register_routes(app)
    answer_bad_requests(app)
    return QuietWebSockets(SessionInAddress(app))


@contextlib.contextmanager
def _unused_libraries() -> Iterator[None]:
    """Keep openenv-core from importing what takes it seconds and what this server never uses.

    gradio is for its web interface, and openenv-core works where gradio cannot be imported. fastmcp is for environments
    that contain an MCP server, which ours does not: openenv-core only needs the names that it imports.
    """
    names = ("fastmcp", "fastmcp.client", "fastmcp.client.client", "mcp", "mcp.types")
    substitutes: dict[str, ModuleType | None] = {name: _Names(name) for name in names if name not in sys.modules}
    if "gradio" not in sys.modules:
        substitutes["gradio"] = None  # which is how Python marks "not importable"
    sys.modules.update(substitutes)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in substitutes:
            sys.modules.pop(name, None)


class _Names(ModuleType):
    """A module that has every public name, each an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return type(name, (), {})
