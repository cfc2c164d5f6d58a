"""What `finqa doctor` finds out about vLLM: its interpreter, devices and ranks, or whether running servers answer."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.types import Check
from finqa_plugins.engines._http.config import find_key
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines.vllm import machine
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.machine import interpreter, remedy
from finqa_plugins.engines.vllm.vllm_command import server_rank

DEADLINE_S = 5.0
# Not an import of vllm: that takes 20 s.
_FIND = (
    "import importlib.metadata as m, importlib.util as u; "
    "names = m.packages_distributions().get('vllm', []); "
    "print(*(f'{n} {m.version(n)}' for n in names[:1]) if u.find_spec('vllm') else ())"
)


def checks(settings: Mapping[str, Any]) -> list[Check]:
    """All findings within a few seconds; `settings` are those of the hook `doctor_checks`."""
    try:
        config = VllmEngineConfig.model_validate(settings["engine"]["options"])
    except ValidationError:
        return []  # the check of the settings reports wrong options
    found = [_rank(int(settings["lora"]["rank"]))]
    if config.addresses:
        return [*found, *(_answer(config, address) for address in config.addresses)]
    return [*found, _interpreter(config, Path(settings["data"]["home"])), *_devices()]


def _rank(rank: int) -> Check:
    try:
        allowed = server_rank(rank)
    except ConfigError as error:
        return Check(name="vllm lora", status="fail", detail=error.message, remedy=error.remedy)
    detail = (
        f"adapters of rank {rank} fit --max-lora-rank {allowed}" if rank else "all weights are trained: no adapters"
    )
    return Check(name="vllm lora", status="ok", detail=detail)


def _interpreter(config: VllmEngineConfig, home: Path) -> Check:
    python, fix = str(interpreter(config, home)), remedy(config, home)
    try:
        command = [python, "-c", _FIND]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=4 * DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name="vllm", status="fail", detail=f"{python} cannot be asked: {error}", remedy=fix)
    if not (version := ended.stdout.strip()):
        return Check(name="vllm", status="fail", detail=f"vllm is not installed for {python}", remedy=fix)
    return Check(name="vllm", status="ok", detail=f"{version} for {python}")


def _devices() -> list[Check]:
    """Only that there is no GPU: how servers are placed on GPUs is a check of its own."""
    if machine.has_gpu():
        return []
    detail = "no GPU: the servers compute on the CPU, which needs a CPU build of vLLM and is for trials"
    return [Check(name="vllm devices", status="warn", detail=detail, remedy="--engine transformers")]


def _answer(config: VllmEngineConfig, address: str) -> Check:
    try:
        connection = config.connection(address).model_copy(update={"request_timeout_s": DEADLINE_S})
        names = asyncio.run(_names(Client(connection, find_key(connection), seed=0)))
    except FinqaError as error:
        return Check(name="vllm server", status="fail", detail=error.message, remedy=error.remedy)
    return Check(name="vllm server", status="ok", detail=f"{address} serves {', '.join(names) or 'no model'}")


async def _names(client: Client) -> list[str]:
    try:
        return [card.name for card in await client.listing() or ()]
    finally:
        await client.close()
