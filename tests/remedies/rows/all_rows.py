"""All rows by name, `group: what is wrong`."""

from __future__ import annotations

from dataclasses import replace

from remedies.rows import (
    begun_workflows,
    clouds,
    codecs,
    command_lines,
    components,
    damaged_runs,
    data,
    engines,
    environments,
    evaluations,
    guarded_data,
    hubs,
    imports,
    interruptions,
    learners,
    learning,
    machines,
    openenv_servers,
    own_environments,
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
    "codecs": codecs.CODECS,
    "engines": engines.ENGINES,
    "coreweave": clouds.COREWEAVE,
    "daytona": clouds.DAYTONA,
    "learners": learners.LEARNERS,
    "openenv": openenv_servers.OPENENV_SERVERS,
    "own": own_environments.OWN_ENVIRONMENTS,
    "python": python_api.PYTHON,
    "interrupted": interruptions.INTERRUPTIONS,
    "recorded": recorded_files.FILES,
    "guarded": guarded_data.GUARDED,
    "policies": policies.POLICIES,
    "learning": learning.LEARNING,
    "plugins": plugin_faults.PLUGINS,
    "begun": begun_workflows.BEGUN,
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
        "daytona: an image of other data",
        "daytona: an image that takes long",
        "daytona: no image of a snapshot",
        "imports: demonstrations of the test",
        "learners: no weights",
        "learners: rows that the model does not take",
        "lines: no demonstrations",
        "machines: no GPU",
        "openenv: a Python without OpenEnv",
        "openenv: a project that is no TOML",
        "openenv: requirements that are no text",
        "own: sandboxes of a plugin for OpenEnv",
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
