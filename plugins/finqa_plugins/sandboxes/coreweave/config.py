"""Options of the `cwsandbox` sandbox provider."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class CoreWeaveSandboxConfig(BaseModel):
    """Options for creating, reaching and ending sandboxes. The service ends a forgotten one after `max_lifetime_s`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    auth: Literal["api_key", "wandb"] = Field(default="api_key", description="Whose account: CoreWeave's key or W&B's")
    api_key: SecretStr | None = Field(default=None, description="CoreWeave's key (default: CWSANDBOX_API_KEY)")
    entity: str | None = Field(
        default=None, description="W&B entity that the sandboxes belong to (default: W&B's settings)"
    )
    project: str | None = Field(default=None, description="W&B project that the sandboxes are counted for")
    container_image: str = Field(default="python:3.11", min_length=1, description="Image with python3, 3.11 or newer")
    cpu: float = Field(default=1.0, gt=0, description="CPUs of a sandbox")
    memory_mib: int = Field(default=1024, ge=128, description="Memory of a sandbox in MiB")
    network: bool = Field(default=False, description="Whether a sandbox may reach the network")
    placement: Literal["auto", "serverless", "cks"] = Field(
        default="auto",
        description="Where sandboxes run: CoreWeave's own pool or your cluster (default: as the account says)",
    )
    max_lifetime_s: int = Field(default=21_600, ge=60, description="Seconds after which a forgotten sandbox is ended")
    request_timeout_s: float = Field(default=30.0, gt=0, description="Seconds for an answer of the service")
    create_timeout_s: float = Field(default=120.0, gt=0, description="Seconds for the service to accept a sandbox")
    start_timeout_s: float = Field(default=300.0, gt=0, description="Seconds for an accepted sandbox to run")
    delete_timeout_s: float = Field(default=60.0, gt=0, description="Seconds for an ended sandbox to be gone")
