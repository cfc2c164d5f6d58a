"""One finding of `finqa doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding and its remedy.

    Attributes:
        name: A few words, such as `daytona key`.
        status: `ok`; `warn`: things will work, but not as asked or not for long; `fail`: they will not.
        detail: What was found, in one sentence.
        remedy: The command or action that fixes it; empty for `ok`.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""
