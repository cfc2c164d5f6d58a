"""Options of the `daytona` sandbox provider, and whether there is a key. No SDK is imported: any command may ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from finqa_cli.types import Check

KEY_VARIABLE = "DAYTONA_API_KEY"


class DaytonaSandboxConfig(BaseModel):
    """Options for creating, keeping and ending sandboxes.

    An abandoned sandbox ends by itself: it is stopped after `auto_stop_minutes` without activity,
    deleted when it stops, and destroyed after `ttl_minutes` in any state. A running provider resets
    both clocks in time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    api_key: SecretStr | None = Field(default=None, description="API key (default: the variable DAYTONA_API_KEY)")
    target: str | None = Field(default=None, description="Region of the sandboxes (default: the organisation's)")
    base_image: str | None = Field(default=None, description="Image to build upon (default: python:3.12-slim, pinned)")
    execution_image: str | None = Field(
        default=None,
        description="Image of sandboxes that execute code, with Python 3.11 or newer (default: as base_image)",
    )
    cpu: int = Field(default=1, ge=1, description="Virtual CPUs of a sandbox; part of the image")
    memory_gib: int = Field(default=1, ge=1, description="Memory of a sandbox in GiB; part of the image")
    disk_gib: int = Field(default=3, ge=1, description="Disk of a sandbox in GiB; part of the image")
    ttl_minutes: int = Field(default=720, ge=2, description="Minutes after which a forgotten sandbox is destroyed")
    auto_stop_minutes: int = Field(
        default=30, ge=1, description="Idle minutes after which a forgotten sandbox is deleted"
    )
    create_limit: int = Field(default=300, ge=1, description="Most starts in a window, as the account's tier allows")
    create_window_s: float = Field(default=60.0, gt=0, description="Seconds of that window")
    build_timeout_s: float = Field(default=1800.0, gt=0, description="Timeout of building an image, in seconds")
    create_timeout_s: float = Field(default=120.0, gt=0, description="Seconds for a sandbox to start")
    start_timeout_s: float = Field(default=120.0, gt=0, description="Timeout until its server is healthy, in seconds")
    url_ttl_s: int = Field(default=86_400, ge=2, le=86_400, description="Seconds that an address of a sandbox is valid")
    keepalive_s: float = Field(default=300.0, gt=0, description="Seconds between signs of activity for each sandbox")
    delete_timeout_s: float = Field(default=60.0, gt=0, description="Seconds for a deleted sandbox to be gone")

    @model_validator(mode="after")
    def _kept_alive(self) -> DaytonaSandboxConfig:
        if self.keepalive_s >= self.auto_stop_minutes * 60:
            raise ValueError("keepalive_s must be less than auto_stop_minutes, or running sandboxes would be stopped")
        return self


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether there is a key; see `Component.readiness`."""
    chosen = settings["sandbox"]
    if os.environ.get(KEY_VARIABLE, "").strip() or (chosen["name"] == "daytona" and chosen["options"].get("api_key")):
        return []
    return [Check(name="daytona", status="fail", detail=f"needs {KEY_VARIABLE}", remedy=f"export {KEY_VARIABLE}=...")]
