"""Registration of plugins, and creation of components by name."""

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
