"""Python imports this module at its start: `time.time` of the process then follows the file that a variable names.

The file contains seconds to add, and may change at any time. The machine's clock and `time.monotonic` stay as they are,
as they do for a process when a user sets the clock.
"""

from __future__ import annotations

import os
import time

_FILE = os.environ.get("RELIABILITY_CLOCK", "")
_time, _time_ns = time.time, time.time_ns


def _offset_s() -> float:
    try:
        with open(_FILE, encoding="ascii") as file:  # noqa: PTH123  every program starts with this module
            return float(file.read() or 0.0)
    except (OSError, ValueError):
        return 0.0


def _stepped() -> float:
    return _time() + _offset_s()


def _stepped_ns() -> int:
    return _time_ns() + int(1e9 * _offset_s())


if _FILE:
    time.time, time.time_ns = _stepped, _stepped_ns
