"""Recipes of images on Daytona, each for one size and region of sandboxes; the containers wait for commands."""

from __future__ import annotations

from finqa_cli.types import ServerSpec
from finqa_plugins.sandboxes._images import image_recipe
from finqa_plugins.sandboxes._images.image_recipe import BASE_IMAGE, ImageOptions, Recipe
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig


def image_options(config: DaytonaSandboxConfig) -> ImageOptions:
    """The options that all images of these settings share."""
    return ImageOptions(
        sandbox="daytona",
        title="Sandboxes of Daytona",
        base_image=config.base_image or BASE_IMAGE,
        own_base=config.base_image or "",
        place={"resources": [config.cpu, config.memory_gib, config.disk_gib], "target": config.target},
    )


def make_recipe(spec: ServerSpec, config: DaytonaSandboxConfig) -> Recipe:
    """See `image_recipe.make_recipe`."""
    return image_recipe.make_recipe(spec, image_options(config))


def image_name(spec: ServerSpec, config: DaytonaSandboxConfig) -> str:
    """Name of the image from which sandboxes of this spec start."""
    return make_recipe(spec, config).name
