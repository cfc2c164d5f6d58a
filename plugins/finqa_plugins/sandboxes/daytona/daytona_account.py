"""The key of the Daytona account, and whether it is set. Imports no SDK: every command may ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from finqa_cli.types import Check

KEY_VARIABLE = "DAYTONA_API_KEY"


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether there is a key; see `Component.readiness`."""
    chosen = settings["sandbox"]
    if os.environ.get(KEY_VARIABLE, "").strip() or (chosen["name"] == "daytona" and chosen["options"].get("api_key")):
        return []
    return [Check(name="daytona", status="fail", detail=f"needs {KEY_VARIABLE}", remedy=f"export {KEY_VARIABLE}=...")]
