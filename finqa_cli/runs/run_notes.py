"""Details of a run for reports: changed settings, inputs, checkpoints and notable events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import FinqaError
from finqa_cli.masking import masked
from finqa_cli.runs import checkpoints
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.jsonl import read_backwards
from finqa_cli.runs.reporter import PHASE_EVENT
from finqa_cli.runs.run_folder import MANIFEST, read_settings
from finqa_cli.runs.run_nodes import FOLLOWED, PLACED_EVENTS, NodeState, follow_backwards
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.settings.learning_rates import SFT_RATES, TRAIN_RATES, rate_for
from finqa_cli.settings.load import profile_values

ROUTINE = frozenset(
    {
        "run_start",
        "run_end",
        "pool",
        "sandbox_ready",
        "weights",
        "probe_tolerance",
        "mirrored",
        PHASE_EVENT,
        "estimate",
        "worker_placed",
        *PLACED_EVENTS,
    }
)
"""Events of every run; all other events are notable."""

_NO_CHOICE = ("run.placed", "run.dir")
_RATES = ("train.learning_rate", "sft.learning_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNotes:
    """Details of one run in addition to its summary.

    Attributes:
        settings: Values of settings that differ from the defaults, by dotted path.
        automatic: Paths in `settings` that the profile of a small policy or the placement set; the user set the others.
        inputs: Inputs of the run by name: a policy, data, demonstrations, earlier steps.
        checkpoints: Iterations that have a checkpoint.
        counts: Number of notable events by name.
        last: The last notable events, oldest first, as recorded.
        nodes: Nodes of the cluster and what they run; empty for a run on one machine.
    """

    settings: Mapping[str, Any]
    automatic: tuple[str, ...]
    inputs: Mapping[str, Any]
    checkpoints: tuple[int, ...]
    counts: Mapping[str, int]
    last: tuple[Mapping[str, Any], ...]
    nodes: tuple[NodeState, ...]


def read_notes(run: Path, *, last: int = 5) -> RunNotes:
    """Read the details of a run, with its last `last` notable events; what is missing or damaged is left out."""
    counts: Counter[str] = Counter()
    kept: list[Mapping[str, Any]] = []
    placed: list[Mapping[str, Any]] = []
    for record in read_backwards(run / "events.jsonl"):
        name = str(record.get("event"))
        if name in FOLLOWED:
            placed.append(record)
        if name not in ROUTINE:
            counts[name] += 1
            if len(kept) < last:
                kept.append(record)
    inputs = read_document(run / MANIFEST).get("inputs")
    settings, automatic = changed_settings(run)
    return RunNotes(
        settings=settings,
        automatic=automatic,
        inputs=inputs if isinstance(inputs, Mapping) else {},
        checkpoints=tuple(checkpoints.iterations(run)),
        counts=dict(counts.most_common()),
        last=tuple(reversed(kept)),
        nodes=follow_backwards(placed).states(),
    )


def changed_settings(run: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings of a run that differ from the defaults, by dotted path, and the paths set automatically.

    Set automatically are values of the profile of a small policy, and values of the placement. Both are empty if the
    run has no settings.
    """
    try:
        recorded = read_settings(run)
    except (FinqaError, AttributeError, TypeError):
        return {}, ()
    usual = dict(_flat(to_public_dict(Settings())))
    stated = dict(_flat(masked(recorded)))
    rates = {rate_for(stated.get("lora.rank") or 0, both) for both in (TRAIN_RATES, SFT_RATES)}
    usual |= {path: stated.get(path) for path in _RATES if stated.get(path) in rates}
    changed = {
        path: value for path, value in stated.items() if usual.get(path, ...) != value and path not in _NO_CHOICE
    }
    profile = profile_values(str(stated.get("model.name")))
    placed = stated.get("run.placed") or ()
    return changed, tuple(path for path in changed if path in placed or changed[path] in profile.get(path, ()))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
