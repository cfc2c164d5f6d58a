"""Types of the lines of `events.jsonl`. The docstring of a type says when the event is recorded."""

from __future__ import annotations

from typing import Literal

from written_types import ABSENT, Written

from finqa_cli.rollout.pool import PoolStats
from finqa_cli.training.rl.probe import Difference, Tolerance
from finqa_cli.types.trajectories import Status


class Event(Written):
    """What every line has."""

    schema_version: Literal[1]
    """Version of the layout of this line."""
    event: str
    """Name of the event."""
    time: float
    """Unix time in seconds."""


class SandboxEvent(Event):
    """An event of the sandboxes."""

    worker: int = ABSENT
    """Number of the rollout worker; absent without rollout workers."""


class RunStart(Event):
    """A process begins or resumes the run."""

    event: Literal["run_start"]


class RunEnd(Event):
    """The process ends the run. It is missing after `kill -9`."""

    event: Literal["run_end"]
    status: Literal["completed", "interrupted", "failed"]
    """How the run ended."""


class Phase(Event):
    """Work that takes longer than a moment begins, such as loading a model or validation."""

    event: Literal["phase"]
    phase: str
    """What is done, as the display names it."""


class Estimated(Event):
    """A training of more than a minute begins, and its length was estimated from measurements."""

    event: Literal["estimate"]
    seconds: float
    """Seconds of all remaining work."""
    parts: dict[str, float]
    """Seconds by kind of work."""
    shorter: str = ABSENT
    """A command that trains less; absent if the run takes at most 15 minutes, or if it was not started by a command."""
    shorter_s: float = ABSENT
    """Seconds of that command."""


class PoolEvent(Event):
    """Some seconds after the figures of the sandboxes changed, and at the end of the run."""

    also = (PoolStats,)

    event: Literal["pool"]


class SandboxReady(SandboxEvent):
    """A sandbox started."""

    event: Literal["sandbox_ready"]
    sandbox: str
    """Id of the sandbox."""
    seconds: float
    """Seconds since its start was requested."""


class SandboxFailed(SandboxEvent):
    """A sandbox did not start."""

    event: Literal["sandbox_failed"]
    reason: str
    """The error."""
    remedy: str
    """A command that fixes it; may be empty."""


class SandboxLost(SandboxEvent):
    """A running sandbox died, or failed every session. Its sessions continue on other sandboxes."""

    event: Literal["sandbox_lost"]
    sandbox: str
    """Id of the sandbox."""
    reason: str
    """The error."""
    sessions: int
    """Number of sessions that were cut."""


class SandboxReplaced(SandboxEvent):
    """A sandbox started in place of a lost one."""

    event: Literal["sandbox_replaced"]
    sandbox: str
    """Id of the new sandbox."""
    instead_of: str
    """Id of the lost sandbox."""
    seconds: float
    """Seconds since the other one was lost."""


class SandboxSpent(SandboxEvent):
    """The only session of a sandbox ended, where each session needs a fresh one."""

    event: Literal["sandbox_spent"]
    sandbox: str
    """Id of the sandbox."""


class PoolReduced(SandboxEvent):
    """No further sandbox can be started, so the run continues with those that run."""

    event: Literal["pool_reduced"]
    alive: int
    """Running sandboxes."""
    size: int
    """Wanted sandboxes."""
    reason: str
    """The error."""
    remedy: str
    """A command that fixes it; may be empty."""


class BreakerOpen(SandboxEvent):
    """Too many faults followed each other, so the run ends."""

    event: Literal["breaker_open"]
    reason: str
    """The last fault."""
    remedy: str
    """A command that fixes it; may be empty."""


class Retried(Event):
    """An attempt was recorded that had been played again, or had continued after a lost connection."""

    event: Literal["retried"]
    id: str
    """Id of the attempt."""
    status: Status
    """Why it ended."""
    retries: int
    """Earlier attempts that ended in a fault."""
    recoveries: int
    """How often the episode continued in a new session."""


class Weights(Event):
    """The engine serves a new policy version. Sizes, seconds and differences are those of `metrics.jsonl`."""

    event: Literal["weights"]
    version: int
    """Number of the policy."""
    sync_bytes: int
    """Bytes of weights that were written for the engine."""
    probe_difference: float = ABSENT
    """Mean absolute difference of log-probabilities without outliers, in nats; absent without a probe."""
    probe_largest: float = ABSENT
    """Largest absolute difference of any token, in nats; absent without a probe."""
    probe_looks: int = ABSENT
    """Comparisons that were needed; absent without a probe."""
    publish_s: float
    """Seconds for writing the weights."""
    load_s: float
    """Seconds for loading them."""
    probe_s: float
    """Seconds of the probe."""


class ProbeTolerance(Event):
    """At the start of a training: the difference of engine and learner that rounding causes was measured."""

    also = (Tolerance,)

    event: Literal["probe_tolerance"]
    tokens: int
    """Number of tokens that were compared."""


class ProbeDiffers(Event):
    """An engine replica differs from the learner by more than the tolerance. After the second look the run ends."""

    also = (Difference,)

    event: Literal["probe_differs"]
    version: int
    """Number of the policy."""
    look: int
    """Number of the comparison, 1 or 2."""
    replica: int
    """Number of the engine replica."""
    typical: float | None
    """Mean of the absolute differences without outliers, in nats; null if it is not finite."""
    largest: float | None
    """Largest absolute difference, in nats; null if it is not finite."""


class LossStuck(Event):
    """The loss of a training on a file had not moved after a fifth of its steps."""

    event: Literal["loss_stuck"]
    steps: int
    """Steps that were compared."""
    first: float
    """Mean loss of the first third of them."""
    last: float
    """Mean loss of the last third."""
    error: float
    """Standard error of the difference."""


class OutOfMemory(Event):
    """The memory of the learner's device was full. The step is repeated with smaller micro-batches, or the run ends."""

    event: Literal["out_of_memory"]
    reason: str
    """The error of the device."""
    work: str = ABSENT
    """`update` or `scoring`; absent if the run ends."""
    tokens: int = ABSENT
    """Tokens of the micro-batch; absent if cached memory was released and nothing else changed."""
    token_budget: int | None = ABSENT
    """Most tokens of a micro-batch from now on, and in a resumed run."""
    scoring_budget: int = ABSENT
    """Most tokens that are scored at once from now on."""


class EngineNodes(Event):
    """Engine replicas were placed on the nodes of a cluster."""

    event: Literal["engine_nodes"]
    nodes: list[str]
    """Address of the node of each replica, in order of their numbers."""


class LearnerNodes(Event):
    """Learner processes were placed on the nodes of a cluster."""

    event: Literal["learner_nodes"]
    nodes: list[str]
    """Address of the node of each process, in order of their numbers."""


class EngineLeftOut(Event):
    """An engine replica cannot be reached and gets no requests."""

    event: Literal["engine_left_out"]
    replica: int
    """Number of the replica."""
    node: str = ABSENT
    """Address of its node; absent on one machine."""
    reason: str
    """The error."""


class EngineAway(Event):
    """New weights cannot be loaded, because no engine can be reached. The run waits for up to `train.sync_wait_s`."""

    event: Literal["engine_away"]
    version: int
    """Number of the policy."""
    reason: str
    """The error."""


class EngineBack(Event):
    """A replica, or without `replica` the engine, can be reached again."""

    event: Literal["engine_back"]
    replica: int = ABSENT
    """Number of the replica; absent if the run had waited for the engine."""
    node: str = ABSENT
    """Address of its node; absent on one machine."""
    version: int | None
    """Number of the policy that it serves; null if it is not known."""


class WorkerEvent(Event):
    """An event of a rollout worker."""

    worker: int
    """Number of the worker."""
    node: str
    """Address of its node."""
    generation: int
    """How often the worker was started."""


class WorkerPlaced(WorkerEvent):
    """A rollout worker starts to play."""

    event: Literal["worker_placed"]


class WorkerLost(WorkerEvent):
    """A rollout worker ended or cannot be reached. Its attempts are played by other workers."""

    event: Literal["worker_lost"]
    reason: str
    """The error."""
    attempts: int
    """Number of attempts that were moved to other workers."""


class WorkerBack(WorkerEvent):
    """A rollout worker plays again after it was lost."""

    event: Literal["worker_back"]


class Mirrored(Event):
    """A copy of the run was written to `run.mirror`."""

    event: Literal["mirrored"]
    iteration: int
    """Iteration of the newest checkpoint in the copy."""
    files: int
    """Number of files."""
    bytes: int
    """Size of the copy in bytes."""
    sent_bytes: int
    """Bytes that were transferred."""
    seconds: float
    """Seconds of the transfer."""


class MirrorFailed(Event):
    """The run could not be copied to `run.mirror`; the next checkpoint starts a new copy."""

    event: Literal["mirror_failed"]
    mirror: str
    """Address of the copy."""
    reason: str
    """The error."""


EVENTS: tuple[type[Event], ...] = (
    RunStart,
    RunEnd,
    Phase,
    Estimated,
    PoolEvent,
    SandboxReady,
    SandboxFailed,
    SandboxLost,
    SandboxReplaced,
    SandboxSpent,
    PoolReduced,
    BreakerOpen,
    Retried,
    Weights,
    ProbeTolerance,
    ProbeDiffers,
    LossStuck,
    OutOfMemory,
    EngineNodes,
    LearnerNodes,
    EngineLeftOut,
    EngineAway,
    EngineBack,
    WorkerPlaced,
    WorkerLost,
    WorkerBack,
    Mirrored,
    MirrorFailed,
)
"""One type for each event, in the order of the page."""
