"""How a model family writes tool calls: one `CallFormat` each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from finqa_cli.types import ToolCall

Schemas = Mapping[str, Mapping[str, Any]]
"""For each tool by name: its parameters as a JSON schema."""


class CallFormat(Protocol):
    """Writes a tool call as the family's chat template does, and finds it in what a model wrote. Pure text."""

    @property
    def separator(self) -> str:
        """What stands between an assistant's words and the call."""
        ...

    def render(self, call: ToolCall) -> str:
        """The call as the family's chat template writes it (without control-token care: see `shielding`)."""
        ...

    def find(self, spoken: str, schemas: Schemas) -> ToolCall:
        """The one call in `spoken`, a turn without its reasoning block; `schemas` type what the format writes as text.

        Raises:
            CallError: There is none, more than one, or one that cannot be read.
        """
        ...
