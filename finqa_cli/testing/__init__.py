"""For tests of this product and of plugins: Daytona's and CoreWeave's services on 127.0.0.1, with faults on demand.

The product itself does not use them. They need the extra `testing`, which the extras `daytona` and `coreweave` include.
`LoopbackDaytona` runs in the current event loop, `LoopbackProcess` in its own process; CoreWeave's service is
`finqa_cli.testing.coreweave.coreweave_loopback.LoopbackCoreWeave`. `python -m finqa_cli.testing.serve daytona` (or
`coreweave`) serves from a shell.
"""

from finqa_cli.testing.daytona.config import Faults, Latency, LoopbackConfig, Quota
from finqa_cli.testing.daytona.loopback import LoopbackDaytona, LoopbackProcess
from finqa_cli.testing.daytona.loopback_control import AsyncControl, Control, Stats
from finqa_cli.testing.random_streams import Delay

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
