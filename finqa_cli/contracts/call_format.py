"""Call formats: how a model family writes a tool call. Text only; codecs convert it to tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from finqa_cli.types import ToolCall

Schemas = Mapping[str, Mapping[str, Any]]
"""Parameters of each tool, by its name, as a JSON schema."""


class CallError(Exception):
    """Describes an invalid call, in a message for the model."""


class NoCallError(CallError):
    """The turn contains no call, only text."""


class CallFormat(ABC):
    """Base class of all call formats, constructed as `Format(None)`: it has no options.

    Writes a call as the family's chat template does, and finds it in what a model wrote. It need not handle control
    tokens: a codec renders calls with placeholders in them.
    """

    jinja: ClassVar[str] = ""
    """Jinja that writes one call as `render` does, from `name` and `arguments`, for the chat template of an export.
    Empty: servers of an export cannot write earlier calls in this format."""

    @property
    @abstractmethod
    def separator(self) -> str:
        """Separator between an assistant's text and the call."""

    @abstractmethod
    def render(self, call: ToolCall) -> str:
        """The call as the family's chat template writes it."""

    @abstractmethod
    def find(self, spoken: str, schemas: Schemas) -> ToolCall:
        """The one call in a turn, found in linear time.

        Args:
            spoken: A turn without its reasoning block; any text is possible.
            schemas: Parameters of the tools. They give the types of arguments that the format writes as text.

        Raises:
            CallError: There is more than one call, or the call cannot be parsed.
            NoCallError: There is no call.
        """

    def find_all(self, spoken: str, schemas: Schemas) -> tuple[ToolCall, ...]:
        """All calls in `spoken`, at least one, in their order. Several calls are written one after the other, each on
        its own lines as `render` writes it.

        Default: the one call that `find` returns.

        Raises:
            CallError: One of them cannot be parsed.
            NoCallError: There is none.
        """
        return (self.find(spoken, schemas),)

    @abstractmethod
    def words(self, spoken: str) -> str:
        """The text of `spoken` before its first call, without the separator."""
