"""Which OpenEnv is installed: `openenv`, or its predecessor `openenv-core`, whose files have the same names."""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution

NAMES = ("openenv", "openenv-core")
REINSTALL = "pip uninstall --yes openenv openenv-core && pip install 'finqa[openenv]'"


def overwritten() -> str:
    """Return why the installed OpenEnv is a mixture of two versions; empty if it is not."""
    found = [each for name in NAMES if (each := _installed(name)) is not None]
    if len(found) < len(NAMES) or len({str(each.locate_file("openenv")) for each in found}) > 1:
        return ""
    versions = " and ".join(f"{name} {each.version}" for name, each in zip(NAMES, found, strict=True))
    return f"{versions} are installed, whose files overwrite each other: they exclude each other."


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None
