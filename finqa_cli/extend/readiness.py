"""Whether a component can be used here: its packages, and what its plugin says of keys, programs and environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.extend.component import Component
from finqa_cli.extend.registry import Registry, missing_requirements
from finqa_cli.types import Check


def readiness(registry: Registry, component: Component, settings: Mapping[str, Any]) -> list[Check]:
    """What keeps a component from being used (`fail`), or from all of its uses (`warn`); empty when nothing does.

    Never raises: a plugin's function that does becomes a failed check.

    Args:
        registry: Where the component is registered.
        component: The component.
        settings: Those of the hook `doctor_checks`; its options count where it is the one that is chosen.
    """
    if missing := missing_requirements(component):
        remedy = f"pip install 'finqa[{component.extra}]'" if component.extra else f"pip install {' '.join(missing)}"
        return [Check(name=component.name, status="fail", detail=f"needs {', '.join(missing)}", remedy=remedy)]
    if not component.readiness:
        return []
    try:
        return [check for check in registry.function(component, component.readiness)(settings) if check.status != "ok"]
    except (Exception, SystemExit) as error:  # of a plugin that may be anybody's
        detail = f"its check failed: {type(error).__name__}: {error}"
        return [Check(name=component.name, status="fail", detail=detail, remedy="report it to the plugin's author")]
