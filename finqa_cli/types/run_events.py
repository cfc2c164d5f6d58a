"""Base of the declarations of events, the lines of `events.jsonl`.

An event is declared beside the code that records it: a subclass of `RunEvent` whose docstring says when it is recorded
and whose fields have a docstring each. The schema of `events.jsonl` and the page of events are made from these
declarations. An event without one is shown with the names of its fields and with the comment `# Event: ...` above the
call that records it.
"""

from __future__ import annotations

from typing import Literal, TypedDict

INLINE = "inline"
"""Annotation of a field whose type is a dataclass: the fields of the dataclass are fields of the event."""


class RunEvent(TypedDict):
    """What every line has, in addition to the name in `event`."""

    schema_version: Literal[1]
    """Version of the layout of this line."""
    time: float
    """Unix time in seconds."""
