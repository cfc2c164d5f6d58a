"""One finding of `finqa doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding and its remedy.

    Attributes:
        name: A few words, such as `daytona key`.
        status: `ok`; `warn`: runs will work, but not as requested or not for long; `fail`: runs will not work.
        detail: What was found, in one sentence.
        remedy: The command or action that fixes it; empty for `ok`.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""
