"""For tests of this product and of plugins: a Daytona on 127.0.0.1 that fails on demand.

Not used by the product. `LoopbackDaytona` runs in the current event loop, `LoopbackProcess` in a process of its own;
`python -m finqa_cli.testing.daytona.serve_daytona` serves from a shell.
"""

from finqa_cli.testing.daytona.config import Delay, Faults, Latency, LoopbackConfig, Quota
from finqa_cli.testing.daytona.loopback import LoopbackDaytona
from finqa_cli.testing.daytona.loopback_control import AsyncControl, Control, Stats
from finqa_cli.testing.daytona.server_child import LoopbackProcess

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
