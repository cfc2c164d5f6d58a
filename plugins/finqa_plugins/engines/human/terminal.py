"""Reads lines from a person: prompt_toolkit with completion on a terminal, plain lines otherwise.

Everything is shown on stderr, so that stdout stays free for the command's result.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from finqa_cli.errors import FinqaError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output


class PersonLeftError(FinqaError):
    """The person ended the conversation with Ctrl-D or Ctrl-C; not a fault of the engine, so it is not retried."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("The episode was ended at the terminal before an answer was submitted.")


class LineReader(Protocol):
    """Asks for one line."""

    async def ask(self, label: str, *, words: Sequence[str], default: str) -> str:
        """The line, stripped; `default` when it is empty.

        Raises:
            PersonLeftError: The input ended, or the person interrupted it.
        """
        ...

    async def line(self, label: str) -> str:
        """The line as it was typed, for text in which spaces mean something; raises as `ask`."""
        ...


class PlainReader:
    """Lines of standard input that is not a terminal."""

    async def ask(self, label: str, *, words: Sequence[str], default: str) -> str:
        """One line; `words` have no use here."""
        return (await self.line(prompt_text(label, default))).strip() or default

    async def line(self, label: str) -> str:
        """See `LineReader.line`."""
        show(label, end="")
        try:
            line = await asyncio.to_thread(sys.stdin.readline)
        except KeyboardInterrupt as error:
            raise PersonLeftError from error
        except UnicodeDecodeError:
            line = "\n"
        if not line:
            raise PersonLeftError
        return str(line).rstrip("\r\n")


class TerminalReader:
    """A terminal, with completion by Tab and history by the arrow keys."""

    def __init__(self, source: Input | None = None, target: Output | None = None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        self.session: PromptSession[str] = PromptSession(
            input=source, output=target or create_output(stdout=sys.stderr), complete_while_typing=True
        )

    async def ask(self, label: str, *, words: Sequence[str], default: str) -> str:
        """One line, completed from `words`."""
        return (await self.line(prompt_text(label, default), words)).strip() or default

    async def line(self, label: str, words: Sequence[str] = ()) -> str:
        """See `LineReader.line`."""
        from prompt_toolkit.completion import WordCompleter

        try:
            return await self.session.prompt_async(label, completer=WordCompleter(list(words), sentence=True))
        except (EOFError, KeyboardInterrupt) as error:
            raise PersonLeftError from error


def choose_reader() -> LineReader:
    """The reader that fits standard input."""
    return TerminalReader() if sys.stdin is not None and sys.stdin.isatty() else PlainReader()


def show(text: str, *, end: str = "\n") -> None:
    """Prints for the person; control characters in tool replies cannot reach the terminal."""
    safe = "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)
    print(safe, end=end, file=sys.stderr, flush=True)


def prompt_text(label: str, default: str) -> str:
    """`label [default]: `."""
    return f"{label} [{default}]: " if default else f"{label}: "
