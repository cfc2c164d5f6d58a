"""The ASGI application: openenv-core's server around our environment."""

from __future__ import annotations

import functools
import os
import sys

from finqa_plugins.environments.openenv_finqa.server.quiet import Application, QuietWebSockets
from finqa_plugins.environments.openenv_finqa.server.server_options import ServerOptions
from finqa_plugins.environments.openenv_finqa.server.server_service import ToolService

MAX_SESSIONS = 4096


def build_app(service: ToolService, options: ServerOptions) -> Application:
    """An application that serves `/ws`, `/health`, `/metadata`, `/schema` and `/mcp`; no web interface."""
    _leave_out_gradio()
    from fastapi import FastAPI
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
    from openenv.core.env_server.types import ConcurrencyConfig

    from finqa_plugins.environments.openenv_finqa.server.http_errors import answer_bad_requests
    from finqa_plugins.environments.openenv_finqa.server.server_environment import FinQAEnvironment
    from finqa_plugins.environments.openenv_finqa.server.server_sessions import JoinableSessions, SessionInAddress

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


def _leave_out_gradio() -> None:
    """Makes `import gradio` fail, which openenv-core tolerates: it would cost seconds and is never served."""
    os.environ["ENABLE_WEB_INTERFACE"] = "false"
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    sys.modules.setdefault("gradio", None)  # type: ignore[arg-type]  # None is how Python marks "not importable"
