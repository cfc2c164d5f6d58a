"""For tests of finqa and of plugins: Daytona's and CoreWeave's services on 127.0.0.1, with faults on demand.

`LoopbackDaytona` runs in the current event loop, `LoopbackProcess` in its own process; CoreWeave's service is
`finqa_testing.coreweave.coreweave_loopback.LoopbackCoreWeave`. `python -m finqa_testing.serve daytona` (or
`coreweave`) serves from a shell. The names below are imported when they are used: every command of finqa imports
`finqa_testing.plugin`, and few need a server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finqa_testing.daytona.config import Faults, Latency, LoopbackConfig, Quota
    from finqa_testing.daytona.loopback import LoopbackDaytona, LoopbackProcess
    from finqa_testing.daytona.loopback_control import AsyncControl, Control, Stats
    from finqa_testing.random_streams import Delay

__all__ = [
    "AsyncControl",
    "Control",
    "Delay",
    "Faults",
    "Latency",
    "LoopbackConfig",
    "LoopbackDaytona",
    "LoopbackProcess",
    "Quota",
    "Stats",
]

_MODULES = {
    "AsyncControl": "daytona.loopback_control",
    "Control": "daytona.loopback_control",
    "Delay": "random_streams",
    "Faults": "daytona.config",
    "Latency": "daytona.config",
    "LoopbackConfig": "daytona.config",
    "LoopbackDaytona": "daytona.loopback",
    "LoopbackProcess": "daytona.loopback",
    "Quota": "daytona.config",
    "Stats": "daytona.loopback_control",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
