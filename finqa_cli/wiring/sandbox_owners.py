"""Owners of sandboxes, and sandboxes whose owner has ended.

Every sandbox is labelled with the process that started it. A process is identified by its pid and its start time,
because pids are reused, and by a host label that also distinguishes containers with the same host name but separate
pids.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from typing import Literal

import structlog

from finqa_cli.contracts import SandboxProvider
from finqa_cli.processes import host_name, start_time
from finqa_cli.runs.reporter import Reporter
from finqa_cli.types import SandboxInfo

log = structlog.get_logger(__name__)

RUN_LABEL, HOST_LABEL, PID_LABEL, CREATED_LABEL = "finqa.run", "finqa.host", "finqa.pid", "finqa.created"

WORKER_LABEL, GENERATION_LABEL = "finqa.worker", "finqa.generation"
"""Labels with the number and the generation of the rollout worker of a sandbox. Its owner is the controller."""

OFFER_TIMEOUT_S = 3.0

OwnerState = Literal["alive", "gone", "elsewhere", "unknown"]


def owner_labels(run_id: str) -> dict[str, str]:
    """Return the labels of a sandbox that this process starts now for a run."""
    pid = os.getpid()
    return {
        RUN_LABEL: run_id,
        HOST_LABEL: host_name(),
        PID_LABEL: f"{pid}:{start_time(pid) or 0}",
        CREATED_LABEL: str(int(time.time())),
    }


def owner_state(labels: Mapping[str, str]) -> OwnerState:
    """Return whether the process that started a sandbox runs; `elsewhere` if it is on another machine."""
    pid, _, started = labels.get(PID_LABEL, "").partition(":")
    if HOST_LABEL not in labels or not (_is_number(pid) and _is_number(started)):
        return "unknown"
    if labels[HOST_LABEL] != host_name():
        return "elsewhere"
    return "alive" if start_time(int(pid)) == int(started) else "gone"


def strays(sandboxes: Iterable[SandboxInfo]) -> tuple[SandboxInfo, ...]:
    """Return the sandboxes whose owner was a process of this machine that has ended."""
    return tuple(sandbox for sandbox in sandboxes if owner_state(sandbox.labels) == "gone")


async def offer_strays(provider: SandboxProvider, reporter: Reporter, sandbox: str = "") -> None:
    """Show the command that ends the sandboxes which ended processes of this machine left behind, if there are any.

    Never raises, and takes a few seconds at most: if the provider cannot be reached, later calls report that.
    `sandbox` is the name of the provider in the command.
    """
    try:
        async with asyncio.timeout(OFFER_TIMEOUT_S):
            left = strays(await provider.list({HOST_LABEL: host_name()}))
    except Exception as error:
        # Log: The provider cannot be reached at the start of a command.
        log.info("could not search for sandboxes that were left behind", reason=str(error) or type(error).__name__)
        return
    if left:
        count = "1 sandbox of an ended run is" if len(left) == 1 else f"{len(left)} sandboxes of ended runs are"
        reporter.line(f"{count} left: {reap_command(sandbox)}")


def reap_command(sandbox: str = "") -> str:
    """Return the command that ends the strays of this machine."""
    return f"finqa sandbox reap{f' --sandbox {sandbox}' if sandbox else ''}"


def list_command(sandbox: str) -> str:
    """Return the command that lists the sandboxes of a provider."""
    return f"finqa sandbox ls --sandbox {sandbox}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
