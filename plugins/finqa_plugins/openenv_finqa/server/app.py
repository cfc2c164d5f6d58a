"""The ASGI application: openenv-core's server around our environment."""

from __future__ import annotations

import functools
import os
import sys

from finqa_plugins.openenv_finqa.server.quiet import Application, QuietWebSockets
from finqa_plugins.openenv_finqa.server.service import ToolService

MAX_SESSIONS = 4096


def build_app(service: ToolService, *, max_steps: int, session_timeout_s: float) -> Application:
    """An application that serves `/ws`, `/health`, `/metadata`, `/schema` and `/mcp`; no web interface."""
    _leave_out_gradio()
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
    from openenv.core.env_server.types import ConcurrencyConfig

    from finqa_plugins.openenv_finqa.server.environment import FinQAEnvironment

    app = create_app(
        functools.partial(FinQAEnvironment, service, max_steps),
        CallToolAction,
        CallToolObservation,
        env_name="finqa_env",
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=MAX_SESSIONS, session_timeout=session_timeout_s),
    )
    return QuietWebSockets(app)


def _leave_out_gradio() -> None:
    """Makes `import gradio` fail, which openenv-core tolerates: it would cost seconds and is never served."""
    os.environ["ENABLE_WEB_INTERFACE"] = "false"
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    sys.modules.setdefault("gradio", None)  # type: ignore[arg-type]  # None is how Python marks "not importable"
