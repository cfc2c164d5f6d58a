"""Checks for `finqa doctor` of containers on this machine: the program, its daemon and the image."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from finqa_cli.errors import FinqaError
from finqa_cli.types import Check
from finqa_plugins.sandboxes.docker.config import DockerSandboxConfig
from finqa_plugins.sandboxes.docker.container_engine import Engine, find_engine, missing_image
from finqa_plugins.sandboxes.docker.docker_images import has_image


def checks(settings: Mapping[str, Any]) -> list[Check]:
    """Results of all checks, within a second if the daemon answers; `settings` are those of `doctor_checks`."""
    try:
        config = DockerSandboxConfig.model_validate(settings["sandbox"]["options"])
    except ValidationError:
        return []  # wrong options are reported by the check of the settings
    image = str(settings["environment"]["options"].get("image") or "")
    return asyncio.run(_found(config, image))


async def _found(config: DockerSandboxConfig, image: str) -> list[Check]:
    try:
        engine = await find_engine(config.command)
        answered = Check(name="docker", status="ok", detail=f"{engine.name} {engine.version} runs containers")
        return [answered, await _image(engine, image, config)] if image else [answered]
    except FinqaError as error:
        return [Check(name="docker", status="fail", detail=error.message, remedy=error.remedy)]


async def _image(engine: Engine, image: str, config: DockerSandboxConfig) -> Check:
    name = "docker image"
    if await has_image(engine, image):
        return Check(name=name, status="ok", detail=f"{image} is on this machine")
    missing = missing_image(engine, image)
    if config.pull == "never":
        return Check(name=name, status="fail", detail=missing.message, remedy=missing.remedy)
    detail = f"{image} is not on this machine; it is pulled when the first container starts"
    return Check(name=name, status="warn", detail=detail, remedy=missing.remedy)
