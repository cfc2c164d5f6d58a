"""Checks of the CoreWeave account for `finqa doctor`: the key and the connection."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from finqa_cli.errors import AuthenticationError, ConfigError, FinqaError
from finqa_cli.types import Check
from finqa_plugins.sandboxes.coreweave.config import KEY_VARIABLE, CoreWeaveSandboxConfig, mapped
from finqa_plugins.sandboxes.coreweave.coreweave_cloud import Cloud, access
from finqa_plugins.sandboxes.coreweave.tags import OURS

DEADLINE_S = 5.0
PATIENCE_S = 1.0
NETWORK_REMEDY = "check the network and CWSANDBOX_BASE_URL, then finqa doctor --sandbox cwsandbox"


def checks(settings: Mapping[str, Any]) -> list[Check]:
    """Results of all checks, within a few seconds; `settings` as the hook `doctor_checks` gets them, secrets masked."""
    given = settings["sandbox"]["options"]
    try:
        config = CoreWeaveSandboxConfig.model_validate({name: given[name] for name in given if name != "api_key"})
    except ValidationError:
        return []  # wrong options are reported by the check of the settings
    return [asyncio.run(_examined(config, old_name=settings["sandbox"]["name"] == "aviato", hidden="api_key" in given))]


async def _examined(config: CoreWeaveSandboxConfig, *, old_name: bool, hidden: bool) -> Check:
    try:
        config = mapped(config, os.environ) if old_name else config
        way = await access(config)
    except AuthenticationError as error:
        if hidden:
            detail = f"the key in the settings is not checked; set {KEY_VARIABLE} instead to check it"
            return Check(name="cwsandbox key", status="warn", detail=detail, remedy=error.remedy)
        return Check(name="cwsandbox key", status="fail", detail=error.message, remedy=error.remedy)
    except ConfigError as error:
        return Check(name="cwsandbox", status="fail", detail=error.message, remedy=error.remedy)
    cloud = Cloud(config)
    began = time.monotonic()
    try:
        async with asyncio.timeout(DEADLINE_S):
            await cloud.find([OURS], PATIENCE_S)
    except AuthenticationError as error:
        return Check(name="cwsandbox key", status="fail", detail=error.message, remedy=error.remedy)
    except (FinqaError, TimeoutError) as error:
        said = error.message if isinstance(error, FinqaError) else f"no response within {DEADLINE_S:g} s"
        return Check(name="cwsandbox", status="fail", detail=f"{way.base_url}: {said}", remedy=NETWORK_REMEDY)
    finally:
        cloud.close()
    took_ms = 1000 * (time.monotonic() - began)
    return Check(name="cwsandbox key", status="ok", detail=f"accepted by {way.base_url} in {took_ms:.0f} ms")
