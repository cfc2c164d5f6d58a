"""Do what a remedy says, as a user would: run its commands, change options, variables and files.

A remedy names one or several things to do, of which each is an alternative. Placeholders (`DIR`, `TARGET`) are filled
as a test says; everything else is taken from the text that the product printed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from finqa_cli.app import COMMANDS, main

LOOKS = (
    "config list",
    "config show",
    "data check",
    "doctor",
    "experiment run --help",
    "plugins",
    "plugins show",
    "rewards show",
    "sandbox ls",
    "show",
    "snapshot list",
    "snapshot show",
)
"""Commands that show what a user needs to know in order to correct a command."""

_NAME = rf"finqa (?:(?={'|'.join(COMMANDS)})|--help)"
_VERBS = "lists|shows|waits|tests|continues|which|writes|reads"
_COMMAND = re.compile(rf"{_NAME}.*?(?=$|;|,(?= )| and (?:finqa|--)| or | then |\)| (?:{_VERBS})\b)")
_OPTION = re.compile(r"^(?:or )?(--[a-z][a-z-]*)(?: with one of:)?(?:[ =]([^\s,]+(?:,[^\s,]+)*))?")
_WORDS = ("with", "for", "leaves", "reads", "to", "of", "names", "takes", "in", "and")
_OUT = re.compile(r"^leave (?:out (?P<after>--.*)|(?P<before>--\S+(?: and --\S+)*) out)")


@dataclass(frozen=True)
class Way:
    """One alternative of a remedy: what is done in order.

    Attributes:
        commands: Command lines of finqa, without `finqa`, that come before the original command.
        again: The original command, changed perhaps, is run at the end.
        changed: The original command as it is run then.
        act: What is done beside: a file is moved, a variable unset.
    """

    text: str
    commands: tuple[str, ...] = ()
    changed: str = ""
    act: Callable[[], None] = field(default=lambda: None)

    @property
    def looks(self) -> bool:
        """Whether it only shows something."""
        return bool(self.commands) and all(
            each.startswith(LOOKS) or each.endswith("--help") or each in COMMANDS for each in self.commands
        )


def run(command: str) -> int:
    """Run a command of finqa in this process and return its exit status."""
    return main(shlex.split(command))


def ways(remedy: str, command: str, fill: Mapping[str, str], error: str = "") -> list[Way]:
    """Return the alternatives of a remedy that need no thought; those in words are left to `Fault.by_hand`.

    Args:
        remedy: What was printed after `fix: `.
        command: The command that failed, without `finqa`.
        fill: Value of each placeholder and of each option that is named without one.
        error: What was printed after `error: `; a setting that it names is the one that is replaced.
    """
    for name in re.findall(r" --set ([^ =]+)=", command):
        if f"'{name}'" in error:
            command = without_option(command, f"--set {name}=")
    for name, value in fill.items():
        if not name.startswith("--"):
            remedy = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", value, remedy)
    remedy, _, last = remedy.partition("; then ")  # what a pipeline or an experiment adds to the remedy of a step
    then = _commands(last)
    texts = re.split(r"; |, or | or (?=--|finqa|unset|pip)", remedy)
    found = [way for text in texts if (way := _way(text, command, fill))]
    if not then:
        return found
    return [replace(way, commands=(*way.commands, *then)) for way in found or [Way(remedy)]]


def _commands(text: str) -> list[str]:
    """Return the command lines of finqa in a text, without `finqa`; one in backticks is only mentioned."""
    return [match[0].removeprefix("finqa ").strip() for match in _COMMAND.finditer(text) if "`" not in match[0]]


def _way(text: str, command: str, fill: Mapping[str, str]) -> Way | None:
    if found := _commands(text):
        rest = _COMMAND.sub("", text)
        added = re.search(r" and (--\S+ \S+)(?: instead of (--\S+))?", rest)
        if added and added[2]:
            command = without_option(command, added[2])
        return Way(text, tuple(found), with_option(command, *added[1].split()) if added else command)
    if text.startswith("unset "):
        return Way(text, (), command, lambda: [os.environ.pop(name, "") for name in text.split()[1:]] and None)
    if text.startswith("mv "):
        moved = shlex.split(re.split(r", | and ", text)[0])[1:]
        return Way(text, (), command, lambda: shutil.move(*moved) and None)
    if out := _OUT.match(text):
        names = re.findall(r"--[a-z-]+", out["after"] or out["before"])
        for name in names:
            command = without_option(command, name)
        return Way(text, (), command)
    return _with_options(text, command, fill)


def _with_options(text: str, command: str, fill: Mapping[str, str]) -> Way | None:
    if instead := re.search(r" instead of (--\S+)(?: (\S+))?$", text):
        text, command = (
            text[: instead.start()],
            without_option(command, f"--set {instead[2]}=" if instead[2] else instead[1]),
        )
    changed, rest = command, text
    while option := _OPTION.match(rest.strip()):
        name, value = option[1], option[2] or ""
        value = fill.get(name, "" if value in _WORDS else value)
        if not value and option[2]:  # words that say what to give
            return None
        changed = with_option(changed, name, value)
        rest = re.sub(r"^ (?:of the .*? )?with (?=--)", "", rest.strip()[option.end() :])
    return Way(text, (), changed) if changed != command else None


def with_option(command: str, name: str, value: str) -> str:
    """Return a command with an option in place of the one of that name; settings are added to one another."""
    if name != "--set":
        command = without_option(command, name)
    elif value:
        command = without_option(command, f"--set {value.partition('=')[0]}=")
    return f"{command} {name}{' ' * bool(value)}{value}"


def without_option(command: str, name: str) -> str:
    """Return a command without an option and its value."""
    return re.sub(rf" {re.escape(name)}(?:[= ]?(?!-[^\d])\S+)?(?=\s|$)", "", command)


def contents(*folders: Path) -> dict[Path, bytes]:
    """Return all files of folders; logs and records of what a run measured are not among them."""
    return {path: path.read_bytes() for path in _files(folders)}


def _files(folders: tuple[Path, ...]) -> Iterator[Path]:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix not in (".log", ".lock") and "__pycache__" not in path.parts:
                yield path
