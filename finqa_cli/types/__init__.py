"""Frozen dataclasses that every other part speaks in. Shapes: G attempts, T turns, L tokens."""

from finqa_cli.types.architectures import Architecture, LinearLayer
from finqa_cli.types.checks import Check
from finqa_cli.types.executions import PYTHON, Ending, ExecutionLimits, ExecutionRequest, ExecutionResult
from finqa_cli.types.generation import AssistantTurn, ChatRequest, Completion, GenerateRequest, Sampling
from finqa_cli.types.sandboxes import ExecutionSpec, ImageInfo, SandboxInfo, SandboxSpec, ServerSpec, Snapshot
from finqa_cli.types.tasks import DataInfo, Message, Observation, Prompt, Rewards, Role, Task, ToolCall, ToolSpec
from finqa_cli.types.training import (
    AdvantageEstimation,
    Batch,
    Credit,
    FloatRow,
    IdleOption,
    KlEstimator,
    KlPenalty,
    Loss,
    Normalization,
    Passes,
    PolicyVersion,
    RowLike,
    Sample,
    UpdateReport,
)
from finqa_cli.types.trajectories import Group, Status, Trajectory, Turn

__all__ = [
    "AdvantageEstimation",
    "Architecture",
    "AssistantTurn",
    "Batch",
    "ChatRequest",
    "Check",
    "Completion",
    "Credit",
    "DataInfo",
    "GenerateRequest",
    "Ending",
    "ExecutionLimits",
    "ExecutionRequest",
    "ExecutionResult",
    "ExecutionSpec",
    "FloatRow",
    "Group",
    "IdleOption",
    "ImageInfo",
    "KlEstimator",
    "KlPenalty",
    "LinearLayer",
    "Loss",
    "Message",
    "Normalization",
    "Observation",
    "Passes",
    "PYTHON",
    "PolicyVersion",
    "Prompt",
    "Rewards",
    "Role",
    "RowLike",
    "Sample",
    "Sampling",
    "SandboxInfo",
    "SandboxSpec",
    "ServerSpec",
    "Snapshot",
    "Status",
    "Task",
    "ToolCall",
    "ToolSpec",
    "Trajectory",
    "Turn",
    "UpdateReport",
]
