"""Detects, without torch, whether this machine has a GPU, and which interpreter runs vLLM servers."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from finqa_cli.types import Check
from finqa_cli.venvs import find_venv
from finqa_plugins.engines.vllm.config import VllmEngineConfig

_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of NVIDIA's driver, AMD's driver, and either in WSL."""


def visible_devices() -> tuple[str, ...] | None:
    """The devices that CUDA_VISIBLE_DEVICES leaves to this process; None when it is not set."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else tuple(one.strip() for one in value.split(",") if one.strip())


def has_gpu() -> bool:
    """Whether a server started here would compute on a GPU."""
    return visible_devices() != () and any(Path(device).exists() for device in _DEVICES)


NAME = "vllm"
SETUP = "finqa setup vllm"


def interpreter(config: VllmEngineConfig, home: Path | None) -> Path:
    """The interpreter of servers that the engine starts.

    An environment of `finqa setup vllm` comes before the interpreter of finqa: it has tested releases and was checked.
    If neither has vllm, the result is the interpreter of finqa, and the error of its server names the remedy.

    Args:
        config: The options.
        home: FINQA_HOME, where `finqa setup vllm` writes; None: nothing was set up.
    """
    if config.python is not None:
        return config.python.expanduser().absolute()
    found = None if home is None else find_venv(home, NAME)
    return found.python if found is not None else Path(sys.executable)


def remedy(config: VllmEngineConfig, home: Path | None) -> str:
    """The remedy for an interpreter without vllm; an environment of `finqa setup vllm` is created again."""
    if config.python is None:
        return SETUP if home is None or find_venv(home, NAME) is None else f"{SETUP} --recreate"
    return f"leave out engine.options.python, then {SETUP}; or name an interpreter that has vllm"


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether servers can be started or are named by URL; see `Component.readiness`."""
    config, home = VllmEngineConfig(), Path(settings["data"]["home"])
    if settings["engine"]["name"] == NAME:
        try:
            config = VllmEngineConfig.model_validate(settings["engine"]["options"])
        except ValidationError as error:
            return [_fail(f"wrong options: {error.errors()[0]['msg']}", "finqa plugins show vllm")]
    if config.addresses:
        return [Check(name=NAME, status="warn", detail=f"by URL: {', '.join(config.addresses)}")]
    if config.python is not None:
        there = config.python.expanduser().exists()
        return [] if there else [_fail(f"there is no {config.python}", remedy(config, home))]
    if find_venv(home, NAME) is None and importlib.util.find_spec(NAME) is None:
        return [_fail(f"not set up: {SETUP}", SETUP)]
    return []


def _fail(detail: str, remedy: str) -> Check:
    return Check(name=NAME, status="fail", detail=detail, remedy=remedy)
