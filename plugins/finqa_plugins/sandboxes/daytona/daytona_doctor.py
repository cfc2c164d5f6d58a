"""Checks of the Daytona account for `finqa doctor`: the key, the connection, the quota, the image."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from daytona import DaytonaError, DaytonaNotFoundError
from daytona_api_client_async import ApiClient, ApiKeysApi, Configuration, OrganizationsApi
from daytona_api_client_async.exceptions import OpenApiException
from daytona_api_client_async.models.region_usage_overview import RegionUsageOverview
from pydantic import ValidationError

from finqa_cli.errors import AuthenticationError, FinqaError
from finqa_cli.extend import registry
from finqa_cli.types import Check
from finqa_plugins.sandboxes._images.image_recipe import content_digest, name_of
from finqa_plugins.sandboxes.daytona.config import KEY_VARIABLE, DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_cloud import Cloud, api_key, api_url
from finqa_plugins.sandboxes.daytona.daytona_errors import LIMITS_PAGE, OTHER_QUOTA_REMEDIES, QUOTA_REMEDY
from finqa_plugins.sandboxes.daytona.daytona_images import ACTIVE, Images
from finqa_plugins.sandboxes.daytona.daytona_listing import execution_image
from finqa_plugins.sandboxes.daytona.daytona_recipe import image_options

DEADLINE_S = 5.0
PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Room:
    """How many more sandboxes a quota allows, and which resource limits them."""

    sandboxes: float
    resource: str


def checks(settings: Mapping[str, Any]) -> list[Check]:
    """Results of all checks, within a few seconds; `settings` as the hook `doctor_checks` gets them, secrets masked."""
    options = {name: value for name, value in settings["sandbox"]["options"].items() if name != "api_key"}
    try:
        config = DaytonaSandboxConfig.model_validate(options)
    except ValidationError:
        return []  # wrong options are reported by the check of the settings
    try:
        api_key(config)
    except AuthenticationError as error:
        if "api_key" in settings["sandbox"]["options"]:
            detail = f"the key in the settings is not checked; set {KEY_VARIABLE} instead to check it"
            return [Check(name="daytona key", status="warn", detail=detail, remedy=error.remedy)]
        return [Check(name="daytona key", status="fail", detail=error.message, remedy=error.remedy)]
    return asyncio.run(_within_time(config, settings))


def room(usage: Sequence[RegionUsageOverview], config: DaytonaSandboxConfig) -> Room:
    """How many more sandboxes fit: in the region of the options, else in the one with the most room.

    Each item of `usage` has the quota and the use of one region and class of sandboxes, in CPUs and GiB.
    """
    regions = [region for region in usage if config.target in (None, region.region_id)]
    return max(
        (_room(region, config) for region in regions), key=lambda found: found.sandboxes, default=Room(0, "region")
    )


def quota_check(found: Room, sandboxes: int, config: DaytonaSandboxConfig) -> Check:
    """Check whether the requested number of sandboxes can run."""
    waves = math.ceil(sandboxes / config.create_limit) - 1
    size = f"{config.cpu} CPU, {config.memory_gib} GiB memory, {config.disk_gib} GiB disk"
    if found.sandboxes >= sandboxes:
        pace = f"; starting them takes {waves * config.create_window_s:.0f} s or more" if waves else ""
        return Check(name="daytona quota", status="ok", detail=f"room for {sandboxes} sandboxes of {size}{pace}")
    fitting = max(0, int(found.sandboxes))
    return Check(
        name="daytona quota",
        status="warn" if fitting else "fail",
        detail=f"room for {fitting} of {sandboxes} sandboxes of {size}: {found.resource} is the first limit",
        remedy=f"--sandboxes {fitting}, {OTHER_QUOTA_REMEDIES}" if fitting else QUOTA_REMEDY,
    )


async def _within_time(config: DaytonaSandboxConfig, settings: Mapping[str, Any]) -> list[Check]:
    cloud = Cloud(config)
    found: list[Check] = []
    try:
        async with asyncio.timeout(DEADLINE_S):
            found.append(await _reach(cloud))
            if found[0].status == "ok":
                sandboxes = int(settings["pool"]["sandboxes"])
                found += await asyncio.gather(_quota(config, sandboxes), _image(cloud, config, settings))
    except TimeoutError:
        found.append(
            Check(
                name="daytona",
                status="fail" if not found else "warn",
                detail=f"{api_url()} did not respond to all requests within {DEADLINE_S:g} s",
                remedy="check the network and https://status.app.daytona.io, then run finqa doctor again",
            )
        )
    finally:
        await cloud.close()
    return found


async def _reach(cloud: Cloud) -> Check:
    client = cloud.client()
    began = time.monotonic()
    try:
        await cloud.call(f"asking {api_url()} for an image", lambda: client.snapshot.list(page=1, limit=1), PATIENCE_S)
    except AuthenticationError as error:
        return Check(name="daytona key", status="fail", detail=error.message, remedy=error.remedy)
    except (FinqaError, DaytonaNotFoundError) as error:
        return Check(
            name="daytona",
            status="fail",
            detail=str(error.args[0]),
            remedy="check the network, DAYTONA_API_URL and https://status.app.daytona.io",
        )
    took_ms = 1000 * (time.monotonic() - began)
    return Check(name="daytona key", status="ok", detail=f"accepted by {api_url()} in {took_ms:.0f} ms")


async def _quota(config: DaytonaSandboxConfig, sandboxes: int) -> Check:
    """Check the quota. Only the SDK's generated client can read quotas, and not every key has the rights for it."""
    try:
        async with _raw_client(api_key(config)) as client:
            key = await ApiKeysApi(client).get_current_api_key()
            usage = await OrganizationsApi(client).get_organization_usage_overview(key.organization_id or "")
    except (OpenApiException, OSError, ValueError) as error:
        return Check(
            name="daytona quota",
            status="warn",
            detail=f"the account's quota cannot be read with this key ({type(error).__name__})",
            remedy=f"compare {sandboxes} sandboxes of {config.cpu} CPU with {LIMITS_PAGE}",
        )
    return quota_check(room(usage.region_usage, config), sandboxes, config)


async def _image(cloud: Cloud, config: DaytonaSandboxConfig, settings: Mapping[str, Any]) -> Check:
    """Check that sandboxes can start, from the image of this machine's snapshot if its digest is known."""
    environment = str(settings["environment"]["name"])
    if registry().find("environment", environment).snapshotless:
        detail = f"{environment} has no snapshot, so nothing needs building; code runs in {execution_image(config)}"
        return Check(name="daytona image", status="ok", detail=detail)
    snapshot, digest = str(settings["data"]["snapshot"]), settings["data"].get("digest")
    build = f"finqa snapshot build --sandbox daytona --snapshot-name {snapshot}"
    try:
        images = [image for image in await Images(cloud, config).images() if image.snapshot == snapshot]
    except (FinqaError, DaytonaError) as error:
        again = "finqa doctor --sandbox daytona, which checks again"
        return Check(name="daytona image", status="warn", detail=str(error.args[0]), remedy=again)
    if digest:
        name = await asyncio.to_thread(lambda: name_of(snapshot, content_digest(str(digest), image_options(config))))
        others, images = len(images), [image for image in images if image.name == name]
        if others and not images:
            detail = f"there is no {name}; {others} of snapshot {snapshot} hold other data or another version of finqa"
            return Check(name="daytona image", status="fail", detail=detail, remedy=build)
    if ready := [image.name for image in images if image.state == ACTIVE]:
        return Check(name="daytona image", status="ok", detail=f"{ready[-1]} is active")
    states = ", ".join(f"{image.name} is {image.state}" for image in images)
    detail = states or f"there is no image of snapshot {snapshot}"
    return Check(name="daytona image", status="fail", detail=detail, remedy=build)


def _room(region: RegionUsageOverview, config: DaytonaSandboxConfig) -> Room:
    free = {
        "CPU": (region.total_cpu_quota - region.current_cpu_usage) / config.cpu,
        "memory": (region.total_memory_quota - region.current_memory_usage) / config.memory_gib,
        "disk": (region.total_disk_quota - region.current_disk_usage) / config.disk_gib,
    }
    resource = min(free, key=lambda name: free[name])
    return Room(math.floor(free[resource]), resource)


@asynccontextmanager
async def _raw_client(key: str) -> AsyncIterator[ApiClient]:
    client = ApiClient(Configuration(host=api_url()))
    client.default_headers["Authorization"] = f"Bearer {key}"
    try:
        yield client
    finally:
        await client.close()  # type: ignore[no-untyped-call]
