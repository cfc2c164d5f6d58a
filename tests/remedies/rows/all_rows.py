"""All rows by name, `group: what is wrong`."""

from __future__ import annotations

from remedies.rows import (
    command_lines,
    components,
    damaged_runs,
    data,
    environments,
    imports,
    machines,
    publishing,
    recorded_runs,
    servers,
    settings,
    training,
    workflows,
)

GROUPS = {
    "settings": settings.SETTINGS,
    "components": components.COMPONENTS,
    "runs": recorded_runs.RUNS,
    "lines": command_lines.LINES,
    "data": data.DATA,
    "damaged": damaged_runs.DAMAGED,
    "imports": imports.IMPORTS,
    "publishing": publishing.PUBLISHING,
    "training": training.TRAINING,
    "machines": machines.MACHINES,
    "servers": servers.SERVERS,
    "workflows": workflows.WORKFLOWS,
    "environments": environments.ENVIRONMENTS,
}
FAULTS = {f"{group}: {name}": fault for group, faults in GROUPS.items() for name, fault in faults.items()}
