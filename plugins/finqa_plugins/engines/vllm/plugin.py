"""Registers the `vllm` engine and its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, VenvSpec, hookimpl
from finqa_cli.types import Check

NAME = "vllm"


@hookimpl
def register_components() -> list[Component]:
    """The `vllm` engine. It needs no package here: its servers have their own interpreter, or a URL."""
    return [
        Component(
            kind="engine",
            name=NAME,
            target="finqa_plugins.engines.vllm.vllm_engine:VllmEngine",
            config="finqa_plugins.engines.vllm.config:VllmEngineConfig",
            summary="vLLM: servers that it starts and supervises, or running ones by URL; adapter hot swap, sleep mode",
            devices="several",
            sleeps=True,
            overhead_gib=1.0,
            readiness="finqa_plugins.engines.vllm.machine:readiness",
            venv=VenvSpec(
                requirements="finqa_plugins.engines.vllm:requirements.txt",
                pythons=("3.11", "3.14"),
                gigabytes=14.0,
                check="finqa_plugins.engines.vllm.vllm_doctor:check",
            ),
        )
    ]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Checks of interpreter, devices and ranks, or of the servers by URL, if the engine is `vllm`."""
    if settings["engine"]["name"] != NAME:
        return []
    from finqa_plugins.engines.vllm.vllm_doctor import checks

    return checks(settings)
