"""The whole extension contract: each hook is a signature and a sentence.

A plugin is a module in the entry-point group `finqa` with functions marked `@hookimpl`. See plugins/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pluggy

from finqa_cli.contracts import LearnerProcesses
from finqa_cli.extend.component import Component
from finqa_cli.types import Architecture, Check, Group, PolicyVersion, Trajectory, UpdateReport

GROUP = "finqa"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def register_components() -> Sequence[Component]:  # type: ignore[empty-body]
    """The components that this plugin offers."""


@hookspec
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:  # type: ignore[empty-body]
    """What `finqa doctor` finds about your services and packages under these settings (secrets masked).

    `settings["data"]["digest"]` is the digest of the snapshot on this machine, where there is one, and
    `settings["environment"]["executes"]` says whether sandboxes of the environment execute code, as far as that can be
    asked without building data.

    Called in a thread of its own; it has a few seconds, and what it raises becomes a failed check.
    """


@hookspec
def on_run_start(run_id: str, settings: Mapping[str, Any]) -> None:
    """A run begins; `settings` are resolved and free of secrets."""


@hookspec
def on_run_end(run_id: str, status: str) -> None:
    """A run ends with `completed`, `interrupted` or `failed`."""


@hookspec
def on_trajectory(trajectory: Trajectory) -> None:
    """An attempt ended, graded or not."""


@hookspec
def on_group(group: Group) -> None:
    """All members of a group ended."""


@hookspec
def on_update(iteration: int, report: UpdateReport) -> None:
    """The learner took a step."""


@hookspec
def on_weights(policy: PolicyVersion) -> None:
    """The engine serves this version from now on."""


@hookspec
def on_eval(iteration: int, metrics: Mapping[str, Any]) -> None:
    """An evaluation during or after a run ended."""


@hookspec(firstresult=True)
def resolve_policy(reference: str) -> PolicyVersion | None:
    """Turns a reference given on the command line into a policy; None when it is not yours."""


@hookspec(firstresult=True)
def create_policy(specification: Path, texts: Sequence[str], folder: Path, seed: int) -> PolicyVersion | None:
    """Makes an untrained model and a tokenizer learned from `texts` in `folder`; None when the file is not yours."""


@hookspec(firstresult=True)
def merge_policy(policy: PolicyVersion, folder: Path) -> PolicyVersion | None:
    """Writes the whole model that a policy's adapter and base make into `folder`, which is complete or absent.

    None when the adapter is not yours.
    """


@hookspec(firstresult=True)
def write_model(policy: PolicyVersion, folder: Path, dtype: str) -> PolicyVersion | None:
    """Writes a policy as one whole model into `folder`, which is complete or absent, an adapter merged into its base.

    `dtype` is `float32`, `bfloat16` or `float16`; the policy's model may be a folder of shards. None when not yours.
    """


@hookspec(firstresult=True)
def join_processes(learner: str) -> LearnerProcesses | None:
    """Joins the processes that `torchrun` started, for learners of this name; None when it is not yours.

    Called once, before anything else of the command, in each of them.
    """


@hookspec(firstresult=True)
def inspect_model(reference: str) -> Architecture | None:
    """Reads what a model folder or hub id is built of, without its weights; None when it is not yours."""


@hookspec(firstresult=True)
def explain_error(error: BaseException) -> str | None:
    """One line with the remedy for an exception of your library; None when it is not yours."""
