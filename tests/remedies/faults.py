"""A command that fails, and how its remedy is followed: one row of the tests of remedies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A command that fails, and how its remedy is followed.

    Attributes:
        command: The command, without `finqa`.
        write: Writes what it needs into the working folder.
        fill: Values of placeholders and of options that the remedy names without a value.
        by_hand: What a remedy in words asks for; returns the command that is run then, empty for the same.
        env: Environment variables.
        then: Exit status of the command after the remedy; other than 0 where the next step is another fault. Several
            where alternatives end differently.
        home: It has a FINQA_HOME of its own.
        extra: Options that keep a long command short.
        again: What is run at the end; empty for the command itself.
        elsewhere: Beginnings of alternatives that take what tests have not, such as the hub; others are followed.
        server: A server on loopback, or something else that is there to the end of the row; `{url}` in commands and
            values is its address.
        during: What is there while the command fails, and no longer when its remedy is followed: a signal, a plugin.
        check: Name of the check of `finqa doctor`, or of the component of `finqa plugins show`, whose remedy it is;
            empty for an error.
        url: Address of the server.
        needs: Names of folders of `shared_folders` that are copied into the working folder.
        instead: The remedy's command takes the place of the one that failed.
    """

    command: str
    write: Callable[[], object] = lambda: None
    fill: Mapping[str, str] = field(default_factory=dict)
    by_hand: Callable[[], object] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    then: int | tuple[int, ...] = 0
    home: bool = False
    extra: str = ""
    again: str = ""
    instead: bool = False
    elsewhere: tuple[str, ...] = ()
    server: Callable[[], AbstractContextManager[Any]] | None = None
    during: Callable[[], AbstractContextManager[Any]] = nullcontext
    check: str = ""
    url: str = ""
    needs: tuple[str, ...] = ()

    def at(self, url: str) -> Fault:
        """Return the fault with the address of its server."""
        fill = {name: value.replace("{url}", url) for name, value in self.fill.items()}
        env = {name: value.replace("{url}", url) for name, value in self.env.items()}
        commands = {name: getattr(self, name).replace("{url}", url) for name in ("command", "extra", "again")}
        return replace(self, fill=fill, env=env, url=url, **commands)

    def filled(self, command: str) -> str:
        """Return a command with the address of the server; an empty one is the command itself."""
        return (command or self.command).replace("{url}", self.url)


def text(name: str, content: str) -> Callable[[], object]:
    def write() -> None:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content, encoding="utf-8")

    return write


def new(command: str) -> Callable[[], object]:
    """The user gives another command, as the remedy asks in words."""
    return lambda: command
