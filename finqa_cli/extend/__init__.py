"""How plugins register and how names become objects."""

from finqa_cli.extend.hookspecs import GROUP, KINDS, Component, Kind, VenvSpec, hookimpl, hookspec
from finqa_cli.extend.registry import PluginReport, Registry, missing_requirements, readiness, registry

__all__ = [
    "GROUP",
    "KINDS",
    "Component",
    "Kind",
    "PluginReport",
    "Registry",
    "VenvSpec",
    "hookimpl",
    "hookspec",
    "missing_requirements",
    "readiness",
    "registry",
]
