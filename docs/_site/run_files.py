"""Types of `run.json`, `manifest.json` and the files of checkpoints."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict
from written_types import ABSENT, Written

from finqa_cli.runs.spending import Spending
from finqa_cli.training.preference.preference_loop import HeldOut
from finqa_cli.training.rl.probe import Tolerance
from finqa_cli.training.sft.sft_loop import Validation

DIGESTS = {
    "^.+ digest$": {
        "type": "string",
        "description": "Digest or name of something that the run depends on: `policy digest`, `data digest` (of `finqa "
        "train`: `snapshot digest`), `reward digest`, `pairs digest`. A resumed run must have the same.",
    }
}
Text = dict[str, str]
Status = Literal["running", "completed", "interrupted", "failed"]


class Process(Written):
    """The process that writes a folder."""

    schema_version: Literal[1]
    """Version of the layout of this file."""
    id: str
    """Name of the folder when it was created."""
    command: str
    """The command, as in `finqa COMMAND`."""
    created: str
    """Time of the first start, ISO 8601."""
    pid: int
    """Process id."""
    pid_started: int | None
    """Start time of the process in clock ticks since boot, so that another process with the same id is not mistaken
    for it."""
    host: str
    """Name of the machine, with a suffix that differs between machines and containers."""
    finqa: str
    """Version of finqa."""
    python: str
    """Version of Python."""
    finished: str = ABSENT
    """Time of the end, ISO 8601; absent until the first end."""
    seconds: float | None = ABSENT
    """Seconds of work in all sessions, by the monotonic clock; null if one crashed, absent until the first end."""


class Link(Written):
    """Place of a file or folder that a run names, so that it is found after a move."""

    near: str
    """Path relative to the run folder."""
    absolute: str
    """Absolute path."""
    created: str | None
    """Creation time of the run that contains the path; null outside of runs."""


class Resumption(Written):
    """One resumption of a run."""

    at: str
    """Time, ISO 8601."""
    iteration: int
    """Iteration of the checkpoint; -1 without one, 0 for an evaluation and for samples."""


class RunFile(Process):
    """`run.json` of a run: command, status, process and what the run depends on."""

    model_config = ConfigDict(json_schema_extra={"patternProperties": DIGESTS})

    status: Status
    """Last recorded status. If it is `running` and the process no longer exists, finqa shows `crashed`."""
    commit: str
    """Commit of the checkout that finqa ran from, with `-dirty` if it had changes; empty for an installed package."""
    resumed: list[Resumption]
    """Resumptions, oldest first."""
    links: dict[str, Link]
    """Places of the paths that the run names, by the path as it was typed."""
    target: str = ABSENT
    """Policy or engine that an evaluation plays."""
    rescored: str = ABSENT
    """Run whose attempts `finqa eval --rescore` graded again."""
    episodes: int = ABSENT
    """Planned number of attempts."""
    faults: int = ABSENT
    """Number of attempts of an evaluation that ended in faults."""
    spent: Spending | None = ABSENT
    """Usage and cost until now."""


class StepRecord(Written):
    """One step of a pipeline or experiment."""

    status: Literal["running", "completed", "failed"]
    """Status of the step."""
    command: list[str]
    """Words of the command."""
    recipe: Any
    """The command and its settings in a form that does not depend on the place of the folder."""
    last_command: list[str]
    """Words of the last start, which differ from `command` if the step was resumed."""
    reads: dict[str, str | None]
    """SHA-256 of each input; null if it does not exist."""
    started: str
    """Time of the first start, ISO 8601."""
    seconds: float
    """Seconds over all starts."""
    pid: int
    """Process id of the last start."""
    pid_start: int | None
    """Start time of this process in clock ticks since boot."""
    exit_code: int = ABSENT
    """Exit code of the last start."""
    finished: str = ABSENT
    """Time of the end, ISO 8601."""
    manifest: str = ABSENT
    """SHA-256 of the step's manifest.json."""
    outputs: Text = ABSENT
    """SHA-256 of each output."""


class StepsFile(Process):
    """`run.json` of a pipeline or experiment: status and a record of each step."""

    status: Literal["running", "completed", "interrupted", "failed", "stopped"]
    """Last recorded status."""
    place: str
    """Path of the folder as it was typed."""
    parameters: dict[str, Any]
    """Settings of the pipeline or experiment."""
    steps: dict[str, StepRecord]
    """Steps that were started, by name."""


class ManifestFile(Written):
    """`manifest.json`: what a result depends on, and the digests of the final files."""

    schema_version: Literal[1]
    """Version of the layout of this file."""
    command: str
    """The command, as in `finqa COMMAND`."""
    created: str
    """Time of writing, ISO 8601."""
    versions: Text
    """Versions of finqa, Python, torch, transformers, peft and vllm, as far as they are installed."""
    parameters: dict[str, Any]
    """Settings that the result depends on, with the seed. Secrets are masked."""
    inputs: dict[str, Any] | list[dict[str, Any]]
    """Policy, data and earlier results with their digests: by name, of `finqa compare` one item per run."""
    outputs: Text
    """SHA-256 of the final files, by path in the folder; empty until the command has ended."""


class StartFile(Written):
    """`start.json` in a run folder: the adapter that was merged into the model that the training started from."""

    schema_version: Literal[1]
    """Version of the layout of this file."""
    merged: dict[str, Any]
    """The policy with this adapter: model, adapter, number and digests of its files."""
    sha256: str | None
    """Digest of the merged model."""


class CheckpointManifest(Written):
    """`checkpoints/step_N/manifest.json`: the files of a checkpoint. A checkpoint without it is not valid."""

    schema_version: Literal[1]
    """Version of the layout of this file."""
    files: Text
    """SHA-256 of every other file of the checkpoint, by path."""


class TrainState(Written):
    """`state.json` of a checkpoint of `finqa train`."""

    iteration: int
    """Number of finished iterations."""
    policy_version: int
    """Number of the policy of this checkpoint."""
    model: str
    """Model that the training started from."""
    cursor: int
    """Number of tasks that the walk over the training tasks has yielded."""
    unsettled: list[int]
    """Places below the cursor whose groups are not trained yet; a resumed run plays them again."""
    informative_share: float | None
    """Share of groups with signal that the next iteration expects; null before the first iteration."""
    serving_version: int
    """Number of the policy that the engine served."""
    probe_tolerance: Tolerance | None
    """Measured tolerance of the weight probe; null if it is fixed or there is no probe."""


class FileState(Written):
    """`state.json` of a checkpoint of `finqa sft` or `dpo`."""

    iteration: int
    """Number of finished optimizer steps."""
    policy_version: int
    """Number of the policy of this checkpoint."""
    model: str
    """Model that the training started from."""
    looked: bool
    """The newest evaluation was finished."""
    losses: list[float]
    """Losses of the first steps, of which a warning may follow."""
    before: Validation | HeldOut | None
    """Evaluation before training."""
    after: Validation | HeldOut | None
    """Newest evaluation."""
    best: Validation | HeldOut | None
    """Best evaluation."""
    loss: float = ABSENT
    """Loss of the last step; of `sft` only."""
