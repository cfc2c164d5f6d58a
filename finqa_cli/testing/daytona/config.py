"""Configuration of a loopback Daytona: the account, its limits, its delays and how often it fails."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from finqa_cli.testing.random_streams import ConfigSection, Delay, Share


class Latency(ConfigSection):
    """Delays of the service.

    Attributes:
        api: Delay before any answer of the API and the toolbox.
        create: Time from a create request to its answer.
        start: Time from that answer to the state `started`.
        boot: Time from the command that starts a server to the server's first answer, added to its real start time.
        delete: Time for which a deleted sandbox stays `destroying`.
        build: Time for which an image stays `building`.
        proxy: Delay before a preview connection is made. Bytes of an open connection are never delayed.
    """

    api: Delay = Delay()
    create: Delay = Delay()
    start: Delay = Delay()
    boot: Delay = Delay()
    delete: Delay = Delay()
    build: Delay = Delay()
    proxy: Delay = Delay()


class Faults(ConfigSection):
    """Probabilities of faults, between 0 and 1. Each kind has a random stream of its own.

    Attributes:
        rate_limited: Creates answered 429 although the limit has room.
        server_error: Requests to the API and the toolbox answered 500, 502 or 503 without anything done.
        late_error: Creates answered 504 although the sandbox is created.
        lost_reply: Creates whose connection is dropped although the sandbox is created.
        hang: Requests to the API and the toolbox that are never answered; a create among them creates its sandbox.
        lost_execution: Executions whose connection is dropped although the command ran.
        start_failed: Sandboxes that end in the state `error` instead of `started`.
        proxy_error: Preview requests answered 502.
        dies: Sandboxes that die by themselves `fault_after` their start, as with `kill` of the control.
        freezes: Sandboxes that freeze by themselves `fault_after` their start.
        fault_after: Time from the start of a sandbox to its death or freeze.
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


class Quota(ConfigSection):
    """Resources that all sandboxes may use together. The defaults are Daytona's Tier 4 (2026-07)."""

    cpu: int = Field(default=500, ge=0)
    memory_gib: int = Field(default=1000, ge=0)
    disk_gib: int = Field(default=5000, ge=0)


class LoopbackConfig(ConfigSection):
    """Configuration of a loopback Daytona. The defaults are a fast, faultless Tier 1 account.

    Attributes:
        seed: Seed of every random choice.
        api_key: The key that is accepted; a random one when not given.
        images: Snapshots that are active from the start: name -> folder of a compiled snapshot on this machine, which
            sandboxes see at `image_folder`.
        image_folder: Absolute path inside those images.
        quota: Limits of the account's resources.
        create_limit: Most creates in any window of `create_window_s`; 0 means no limit.
        create_window_s: Length of that window in seconds.
        latency: Delays of the service.
        faults: Probabilities of faults.
        url_ttl_cap_s: Longest life of a signed preview URL in seconds; a longer one is refused as Daytona does.
        stale_list_s: Seconds until a new sandbox appears in the list and a deleted one disappears from it.
        minute_s: Seconds that one minute of the sandboxes' timers (auto-stop, auto-delete, time to live) takes.
        servers: Server processes over which the sandboxes of one image with the same variables are distributed.
        build_fails: Reason with which every build fails, those of single sandboxes included; empty: builds succeed.
        broken_images: Names of images whose servers exit at start.
        origin: `http://HOST:PORT` of a proxy in front of the service, for the URLs that it gives out; its own address
            when empty.
    """

    seed: int = 0
    api_key: str | None = Field(default=None, min_length=8)
    images: dict[str, Path] = Field(default_factory=dict)
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
    origin: str = Field(default="", pattern="^(https?://[^/]+)?$")
