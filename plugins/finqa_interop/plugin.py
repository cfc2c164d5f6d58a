"""Finds environments of verifiers and tasks of Inspect by their names."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl(tryfirst=True)
def find_component(kind: str, name: str) -> Component | None:
    """Return the environment of `verifiers:NAME`, `inspect:FILE@TASK` or `inspect:PACKAGE/TASK`; else None.

    It must run before `python_file`, which would read `verifiers:NAME` as an attribute of a module.
    """
    library, _, source = name.partition(":")
    if kind != "environment" or library not in ("verifiers", "inspect") or not source:
        return None
    package = "finqa_interop"
    return Component(
        kind="environment",
        name=name,
        target=f"{package}.library_environment:LibraryEnvironment",
        config=f"{package}.config:LibraryConfig",
        summary=f"{source} of {library}",
        given={"library": library, "source": source},
        snapshotless=True,
        sandboxless=True,
    )
