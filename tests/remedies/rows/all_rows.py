"""All rows by name, `group: what is wrong`."""

from __future__ import annotations

from dataclasses import replace

from remedies.rows import (
    command_lines,
    components,
    damaged_runs,
    data,
    environments,
    evaluations,
    guarded_data,
    hubs,
    imports,
    interruptions,
    learning,
    machines,
    plugin_faults,
    policies,
    publishing,
    python_api,
    recorded_files,
    recorded_runs,
    servers,
    settings,
    training,
    user_code,
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
    "code": user_code.USER_CODE,
    "hubs": hubs.HUBS,
    "workflows": workflows.WORKFLOWS,
    "environments": environments.ENVIRONMENTS,
    "evaluations": evaluations.EVALUATIONS,
    "python": python_api.PYTHON,
    "interrupted": interruptions.INTERRUPTIONS,
    "recorded": recorded_files.FILES,
    "guarded": guarded_data.GUARDED,
    "policies": policies.POLICIES,
    "learning": learning.LEARNING,
    "plugins": plugin_faults.PLUGINS,
}
SLOW = frozenset(
    {
        "damaged: a run of another version",
        "damaged: an attempt less",
        "damaged: an attempt that is no record",
        "damaged: an attempt twice",
        "damaged: no attempts at all",
        "damaged: no graded attempt",
        "damaged: no report of an evaluation",
        "damaged: settings of a run that are none",
        "imports: demonstrations of the test",
        "lines: no demonstrations",
        "machines: no GPU",
        "servers: a field that is refused",
        "servers: an unknown model",
        "servers: no such path",
        "training: demonstrations wanted",
        "training: runs of other rewards",
        "training: tokens of an engine without",
    }
)
"""Rows that take seconds; others of their kind are quicker."""

FAULTS = {
    f"{group}: {name}": replace(fault, slow=f"{group}: {name}" in SLOW)
    for group, faults in GROUPS.items()
    for name, fault in faults.items()
}
