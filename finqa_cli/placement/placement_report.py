"""A plan as a document for `--json` and as text for a person."""

from __future__ import annotations

from typing import Any

from finqa_cli.placement.placement_plan import count_of
from finqa_cli.placement.placement_types import DevicePlan, Placement, Refusal


def plan_document(found: Placement | Refusal, *, remedy: str = "") -> dict[str, Any]:
    """The JSON form: `engine`, `learner`, `max_staleness`, `token_budget`, `per_device`, `shared`, `notes`, `refused`.

    Args:
        found: The plan.
        remedy: Of a refusal: the command that fits.
    """
    if isinstance(found, Refusal):
        return {
            "engine": None,
            "learner": None,
            "max_staleness": None,
            "token_budget": None,
            "per_device": [],
            "shared": False,
            "notes": [],
            "refused": {"reason": found.reason, "remedy": remedy, "changes": dict(found.changes)},
        }
    engine, learner = found.engine, found.learner
    return {
        "engine": engine
        and {
            "replicas": engine.replicas,
            "tensor_parallel_size": engine.tensor_parallel_size,
            "devices": list(engine.devices),
            "memory_gib": engine.memory_gib,
            "gpu_memory_utilization": engine.gpu_memory_utilization,
            "sleep": engine.sleep,
            "max_model_len": engine.max_model_len,
            "kv_tokens": engine.kv_tokens,
        },
        "learner": learner
        and {"processes": learner.processes, "devices": list(learner.devices), "memory_gib": learner.memory_gib},
        "max_staleness": found.max_staleness,
        "token_budget": found.token_budget,
        "per_device": [
            {
                "device": device.device,
                "gib_total": device.gib_total,
                "gib_planned": device.gib_planned,
                "items": dict(device.items),
            }
            for device in found.per_device
        ],
        "shared": found.shared,
        "notes": list(found.notes),
        "refused": None,
    }


def plan_line(found: Placement, engine: str) -> str:
    """One line: who runs where.

    Args:
        found: The plan.
        engine: Name of the engine.
    """
    parts = []
    if found.engine is not None and found.engine.devices:
        where = _numbers(found.engine.devices)
        size = found.engine.tensor_parallel_size
        spread = f" with {size} devices each" if size > 1 else ""
        parts.append(f"{engine} on {where} ({count_of(found.engine.replicas, 'replica')}{spread})")
    if found.learner is not None and found.learner.devices:
        turns = ", in turn" if found.shared else ""
        processes = f"{found.learner.processes} process" + ("es" if found.learner.processes > 1 else "")
        parts.append(f"learner on {_numbers(found.learner.devices)} ({processes}{turns})")
    if found.learner is not None:
        parts += [f"token budget {found.token_budget:,}", f"staleness {found.max_staleness}"]
    if found.engine is not None and found.engine.max_model_len:
        parts.append(f"context {found.engine.max_model_len:,}")
    return ", ".join(parts)


def plan_text(found: Placement, engine: str) -> str:
    """The line, a row for each device with its largest parts, and the notes."""
    rows = [_row(device) for device in found.per_device]
    notes = [f"note: {note}" for note in found.notes]
    return "\n".join([f"placement: {plan_line(found, engine) or 'no CUDA device is used'}", *rows, *notes])


def _row(device: DevicePlan) -> str:
    items = sorted(device.items.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {size:.1f}" for name, size in items if size >= 0.1) or "not used"
    return f"  device {device.device}: {device.gib_planned:.1f} of {device.gib_total:.0f} GiB: {parts}"


def _numbers(devices: tuple[int, ...]) -> str:
    label = "device" if len(devices) == 1 else "devices"
    return f"{label} {','.join(map(str, devices))}"
