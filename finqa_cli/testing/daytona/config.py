"""What a loopback Daytona is told: the account, its limits, how slow it is and how often it fails."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

Share = Field(default=0.0, ge=0.0, le=1.0)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Delay(_Section):
    """Seconds with a lognormal distribution; a median of 0 means no delay."""

    median_s: float = Field(default=0.0, ge=0.0)
    sigma: float = Field(default=0.0, ge=0.0, le=3.0)


class Latency(_Section):
    """How long things take.

    Attributes:
        api: Before any answer of the API and the toolbox.
        create: From a create request to its answer.
        start: From that answer to the state `started`.
        boot: From the command that starts a server to the server's first answer, on top of what it really takes.
        delete: How long a deleted box stays `destroying`.
        build: How long an image stays `building`.
        proxy: Before a preview connection is made. Bytes of an open connection are never delayed.
    """

    api: Delay = Delay()
    create: Delay = Delay()
    start: Delay = Delay()
    boot: Delay = Delay()
    delete: Delay = Delay()
    build: Delay = Delay()
    proxy: Delay = Delay()


class Faults(_Section):
    """How often things fail, as shares between 0 and 1. Each kind has a random stream of its own.

    Attributes:
        rate_limited: Creates answered 429 although the limit has room.
        server_error: Requests to the API and the toolbox answered 500, 502 or 503 without anything done.
        late_error: Creates answered 504 although the box is made.
        lost_reply: Creates whose connection is cut although the box is made.
        hang: Requests to the API and the toolbox that are never answered; a create among them makes its box.
        lost_execution: Executions whose connection is cut although the command ran.
        start_failed: Boxes that end in the state `error` instead of `started`.
        proxy_error: Preview requests answered 502.
        dies: Boxes that die by themselves `fault_after` their start, as `kill` of the control does.
        freezes: Boxes that freeze by themselves `fault_after` their start.
        fault_after: When they do.
    """

    rate_limited: float = Share
    server_error: float = Share
    late_error: float = Share
    lost_reply: float = Share
    hang: float = Share
    lost_execution: float = Share
    start_failed: float = Share
    proxy_error: float = Share
    dies: float = Share
    freezes: float = Share
    fault_after: Delay = Delay(median_s=10.0, sigma=0.5)


class Quota(_Section):
    """Resources that all boxes may hold together. The defaults are Daytona's Tier 4 (2026-07)."""

    cpu: int = Field(default=500, ge=0)
    memory_gib: int = Field(default=1000, ge=0)
    disk_gib: int = Field(default=5000, ge=0)


class LoopbackConfig(_Section):
    """Everything a loopback Daytona is told. The defaults are a fast, faultless Tier 1 account.

    Attributes:
        seed: Of every random choice.
        api_key: The key that it accepts; a random one when not given.
        images: Snapshots that are active from the start: name -> folder of a compiled snapshot on this machine, which
            boxes see at `image_folder`.
        image_folder: Absolute path inside those images.
        quota: Account limits of boxes.
        create_limit: Creates in any window of `create_window_s`; 0 means no limit.
        create_window_s: Its length in seconds.
        latency: How long things take.
        faults: How often they fail.
        url_ttl_cap_s: The longest life of a signed preview URL; longer wishes are refused as Daytona does.
        stale_list_s: Seconds until a new box appears in the list and a deleted one vanishes from it.
        minute_s: Seconds that the boxes' clocks (auto-stop, auto-delete, time to live) take for a minute.
        servers: Processes among which the boxes of one image with the same variables are dealt.
        build_fails: Reason with which every build fails, those of single boxes included; empty: builds succeed.
        broken_images: Names of images whose servers exit at start.
    """

    seed: int = 0
    api_key: str | None = Field(default=None, min_length=8)
    images: dict[str, Path] = {}
    image_folder: str = Field(default="/opt/finqa/snapshot", pattern="^/.+")
    quota: Quota = Quota()
    create_limit: int = Field(default=300, ge=0)
    create_window_s: float = Field(default=60.0, gt=0.0)
    latency: Latency = Latency()
    faults: Faults = Faults()
    url_ttl_cap_s: int = Field(default=86_400, ge=1)
    stale_list_s: float = Field(default=0.0, ge=0.0)
    minute_s: float = Field(default=60.0, gt=0.0)
    servers: int = Field(default=1, ge=1, le=64)
    build_fails: str = ""
    broken_images: tuple[str, ...] = ()
