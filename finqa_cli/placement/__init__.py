"""Where engine and learner run: one plan from the machine, the model and the settings."""

from finqa_cli.placement.known_models import architecture_of, known, read_architecture
from finqa_cli.placement.memory_formulas import GIB
from finqa_cli.placement.placement_plan import plan
from finqa_cli.placement.placement_report import plan_document, plan_line, plan_text
from finqa_cli.placement.placement_types import (
    Device,
    DevicePlan,
    EngineKind,
    EnginePlan,
    LearnerPlan,
    Placement,
    Refusal,
    Request,
    Workload,
)

__all__ = [
    "GIB",
    "Device",
    "DevicePlan",
    "EngineKind",
    "EnginePlan",
    "LearnerPlan",
    "Placement",
    "Refusal",
    "Request",
    "Workload",
    "architecture_of",
    "known",
    "plan",
    "plan_document",
    "plan_line",
    "plan_text",
    "read_architecture",
]
