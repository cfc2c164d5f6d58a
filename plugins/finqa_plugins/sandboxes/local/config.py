"""Options of the `local` sandbox provider."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict, Field


class LocalSandboxConfig(BaseModel):
    """How logical sandboxes are spread over server processes, and how code that a policy wrote is executed.

    One process serves about 1,200 tool calls a second, so 64 sandboxes keep it far from busy; beyond `processes` times
    that many sandboxes, processes are shared further and nothing is refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sandboxes_per_process: int = Field(default=64, ge=1, description="Sandboxes on a process before another is started")
    processes: int = Field(
        default_factory=lambda: os.cpu_count() or 1, ge=1, description="Most server processes at once (default: cores)"
    )
    start_timeout_s: float = Field(default=120.0, gt=0, description="Seconds for a server to become healthy")
    stop_timeout_s: float = Field(default=3.0, gt=0, description="Seconds between SIGTERM and SIGKILL")
    executions_at_once: int = Field(
        default_factory=lambda: os.cpu_count() or 1,
        ge=1,
        description="Most executions of code at once (default: cores); others wait, and their clocks with them",
    )
    python: str = Field(
        default="",
        description="Python that executes code (default: ours where the sandbox can read it, else the system's)",
    )
    dangerously_run_unisolated: bool = Field(
        default=False, description="Execute code that a policy wrote without isolation: it can read and send your files"
    )
