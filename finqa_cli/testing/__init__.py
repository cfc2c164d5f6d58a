"""For tests of this product and of plugins: a Daytona and a CoreWeave on 127.0.0.1 that fail on demand.

Not used by the product. Needs the extra `testing`, which `daytona` and `coreweave` bring. `LoopbackDaytona` runs in the
current event loop, `LoopbackProcess` in its own process; `python -m finqa_cli.testing.serve daytona` (or
`coreweave`) serves from a shell. CoreWeave's is `finqa_cli.testing.coreweave.coreweave_loopback.LoopbackCoreWeave`.
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
