"""What a rollout worker and the controller send each other, as bytes of which the controller reads little.

An attempt has some 2,400 token ids and 450 log-probabilities. As Python's integers and floats they are most of what it
costs to read it, and nothing needs them while attempts are played, so turns stay bytes until somebody looks at them.
Pickle's own way with frozen dataclasses looks up the fields of each object anew; here a class looks them up once.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import MemberDescriptorType
from typing import Any

from finqa_cli.types import PackedTurns, Trajectory


def pack(message: object) -> bytes:
    """Return a message as bytes."""
    packed = io.BytesIO()
    _Packer(packed, pickle.HIGHEST_PROTOCOL).dump(message)
    return packed.getvalue()


def unpack(packed: bytes) -> Any:
    """Return the message of `pack`, which must come from a process of the run: it is pickled."""
    return pickle.loads(packed)


def pack_turns(trajectory: Trajectory) -> Trajectory:
    """Return an attempt whose turns are packed."""
    turns = PackedTurns(pack(tuple(trajectory.turns)), len(trajectory.turns), trajectory.tokens)
    return replace(trajectory, turns=turns)


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if is_dataclass(kind) and kind.__module__.startswith("finqa_cli.") and _slots(kind) is not None:
            return _make, (kind, tuple(getattr(value, field.name) for field in fields(kind)))
        return NotImplemented


@cache
def _slots(kind: type) -> Sequence[Callable[[Any, Any], None]] | None:
    """Return what sets each field of a class; None where a field has no slot."""
    slots = [getattr(kind, field.name, None) for field in fields(kind)]
    found = [slot.__set__ for slot in slots if isinstance(slot, MemberDescriptorType)]
    return found if len(found) == len(slots) else None


def _make(kind: type, values: Sequence[Any]) -> Any:
    made: Any = object.__new__(kind)
    for put, value in zip(_slots(kind) or (), values, strict=True):
        put(made, value)
    return made
