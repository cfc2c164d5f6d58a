"""Configuration of a loopback Daytona: its account, limits, delays and probabilities of faults."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from finqa_testing.random_streams import ConfigSection, Delay, Share


class Latency(ConfigSection):
    """Delays of the service.

    Attributes:
        api: Delay before every answer of the API and the toolbox.
        create: Time from a create request to its answer.
        start: Time from that answer to the state `started`.
        boot: Time from the command that starts a server until requests are forwarded to the server.
        delete: Time for which a deleted sandbox stays `destroying`.
        build: Time for which an image stays `building`.
        proxy: Delay before a preview connection is made. The data of an open connection is never delayed.
    """

    api: Delay = Delay()
    create: Delay = Delay()
    start: Delay = Delay()
    boot: Delay = Delay()
    delete: Delay = Delay()
    build: Delay = Delay()
    proxy: Delay = Delay()


class Faults(ConfigSection):
    """Probabilities of faults, between 0 and 1. Each kind of fault has its own stream of random numbers.

    Attributes:
        rate_limited: Create requests that are answered 429 although the limit is not reached.
        server_error: Requests to the API and the toolbox that are answered 500, 502 or 503 and have no effect.
        late_error: Create requests that are answered 504 although the sandbox is created.
        lost_reply: Create requests whose connection is dropped although the sandbox is created.
        hang: Requests to the API and the toolbox that are never answered; POST requests among them take effect.
        lost_execution: Executions whose connection is dropped although the command ran.
        start_failed: Sandboxes that end in the state `error` instead of `started`.
        proxy_error: Preview requests that are answered 502.
        dies: Sandboxes that fail by themselves after their start, as with `kill` of the control.
        freezes: Sandboxes that freeze by themselves after their start.
        fault_after: Time from the start of a sandbox until it fails or freezes by itself.
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
    """Configuration of a loopback Daytona. The defaults are a fast account without faults.

    Attributes:
        seed: Seed of every random choice.
        api_key: The key that is accepted; None for a random one.
        images: Snapshots that are active from the start: name -> folder of a compiled snapshot on this machine, which
            sandboxes see at `image_folder`.
        image_folder: Absolute path of that folder inside the images.
        quota: Limits of the account's resources.
        create_limit: Most create requests in any window of `create_window_s`; 0 means no limit.
        create_window_s: Length of that window in seconds.
        latency: Delays of the service.
        faults: Probabilities of faults.
        url_ttl_cap_s: Longest life of a signed preview URL in seconds; requests for a longer one are refused.
        stale_list_s: Seconds until a new sandbox appears in the list and a deleted one disappears from it.
        minute_s: Seconds that one minute of the sandboxes' timers (auto-stop, auto-delete, time to live) takes.
        servers: Number of server processes that the sandboxes of one image with the same variables share.
        build_fails: Reason with which every build fails, also builds for single sandboxes; empty: builds succeed.
        broken_images: Names of images whose servers exit at their start.
        origin: `http://HOST:PORT` of a proxy in front of the service, for the URLs that it returns; empty for its own
            address.
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
