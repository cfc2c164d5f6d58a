"""What a loopback CoreWeave is told: the account, how slow it is and how often it fails."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from finqa_cli.testing.daytona.config import Delay

Share = Field(default=0.0, ge=0.0, le=1.0)


class CoreWeaveFaults(BaseModel):
    """How often things fail, as shares between 0 and 1. Each kind has a random stream of its own.

    Attributes:
        unavailable: Requests answered UNAVAILABLE without anything done.
        busy: Creates answered RESOURCE_EXHAUSTED with the reason CWSANDBOX_RUNNER_CAPACITY_EXHAUSTED.
        lost_reply: Creates answered UNAVAILABLE although the box is made.
        hang: Creates that make their box and are never answered.
        start_failed: Boxes that end in STATE_FAILED instead of STATE_RUNNING.
        execution_cut: Executions whose stream breaks off after the command has begun.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unavailable: float = Share
    busy: float = Share
    lost_reply: float = Share
    hang: float = Share
    start_failed: float = Share
    execution_cut: float = Share


class CoreWeaveConfig(BaseModel):
    """Everything a loopback CoreWeave is told. The defaults are a fast, faultless account.

    Attributes:
        seed: Of every random choice.
        api_key: CoreWeave's key that it accepts; a random one when not given.
        wandb_key: W&B's key that it accepts; none when empty.
        images: Images that can be pulled; any other ends its box in STATE_FAILED.
        most_boxes: Boxes at once; a create above it is answered RESOURCE_EXHAUSTED with CWSANDBOX_QUOTA_EXCEEDED.
        page_size: Boxes on one page of a list.
        create: From a create to its answer.
        start: From that answer to STATE_RUNNING.
        end: How long an ended box stays in STATE_TERMINATING.
        faults: How often things fail.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    api_key: str | None = Field(default=None, min_length=8)
    wandb_key: str = ""
    images: tuple[str, ...] = ("python:3.11",)
    most_boxes: int = Field(default=2000, ge=0)
    page_size: int = Field(default=100, ge=1)
    create: Delay = Delay()
    start: Delay = Delay()
    end: Delay = Delay()
    faults: CoreWeaveFaults = CoreWeaveFaults()
