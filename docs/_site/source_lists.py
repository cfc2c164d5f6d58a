"""The events and log messages of finqa and its plugins, read from the source.

Descriptions stand beside the code: docstrings of the subclasses of `RunEvent` (`finqa_cli/types/run_events.py`), and
comments above the call that records an event or logs a message:

    # Event: when it is recorded
    # Log: when it occurs, and what follows from it
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, create_model
from written_types import ABSENT, Written, one_line

from finqa_cli.types.run_events import INLINE

ROOT = Path(__file__).parents[2]
PARTS = ("finqa", "finqa_cli", *(f"plugins/{name}" for name in ("finqa_plugins", "finqa_interop", "finqa_ray")))
LEVELS = ("debug", "info", "warning", "error", "exception")
EMITTERS = {"event", "_emit", "_tell", "_on_event", "on_event"}
"""Names of the functions that record an event."""

_MAY_RECORD = re.compile(rf"RunEvent|\b(?:{'|'.join(EMITTERS)})\(")
_NAME = re.compile(r"[a-z]+(_[a-z]+)*")


class Event(Written):
    """What every line has."""

    schema_version: Literal[1]
    """Version of the layout of this line."""
    event: str
    """Name of the event."""
    time: float
    """Unix time in seconds."""


class OpenEvent(Event):
    """An event that may have further fields."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class EventType:
    """One event.

    Attributes:
        name: Its name in the file.
        place: Path below its package of the module that declares or records it.
        model: Type of its line.
    """

    name: str
    place: str
    model: type[Event]


@dataclass(frozen=True, order=True)
class LogMessage:
    """One message of the log.

    Attributes:
        level: Its level, or two of them.
        text: The text; values that are known only at run time are in braces. `{event}` alone: the text is a variable.
        fields: Names of its fields; `...` for further ones that are known only at run time.
        place: Path of the module below its package.
        when: When it occurs, and what follows from it; empty without a comment.
    """

    level: str
    text: str
    fields: tuple[str, ...]
    place: str
    when: str


@functools.cache
def events() -> tuple[EventType, ...]:
    """Return every event by place and name: those that are declared, and those that are only recorded."""
    modules = [module for module in _modules() if _MAY_RECORD.search(module.text)]
    found = {each.name: each for module in modules for each in _declared(module)}
    for module in modules:
        for each in _recorded(module):
            found.setdefault(each.name, each)
    return tuple(sorted(found.values(), key=lambda each: (each.place, each.name)))


def log_messages() -> list[LogMessage]:
    """Return every message that is logged with structlog, by place and text."""
    found = {message for module in _modules() for message in _logged(module)}
    return sorted(found, key=lambda each: (each.place, each.text))


@dataclass(frozen=True)
class _Module:
    """A module of the source.

    Attributes:
        path: Its file.
        place: Path below its package.
        name: Its dotted name.
        text: Its source.
    """

    path: Path
    place: str
    name: str
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    def comment(self, call: ast.Call, kind: str) -> str:
        """Return the comment of a kind, such as `Event`, above the statement with a call; empty if there is none."""
        around = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt) and _is_inside(call, node)]
        lines, first = self.text.splitlines(), max(node.lineno for node in around)
        block: list[str] = []
        while first > 1 and lines[first - 2].lstrip().startswith("#"):
            first -= 1
            block.insert(0, lines[first - 1].strip().removeprefix("#").strip())
        return " ".join(block).partition(f"{kind}: ")[2]


def _is_inside(call: ast.Call, statement: ast.stmt) -> bool:
    return statement.lineno <= call.lineno and (call.end_lineno or 0) <= (statement.end_lineno or 0)


@functools.cache
def _modules() -> tuple[_Module, ...]:
    return tuple(
        _Module(
            path,
            path.relative_to(ROOT / part).as_posix(),
            ".".join([Path(part).name, *path.relative_to(ROOT / part).with_suffix("").parts]),
            path.read_text(encoding="utf-8"),
        )
        for part in PARTS
        for path in sorted((ROOT / part).rglob("*.py"))
    )


def _declared(module: _Module) -> Iterator[EventType]:
    """Yield the events that a module declares: its subclasses of `RunEvent` with a field `event`."""
    nodes = {node.name: node for node in module.tree.body if isinstance(node, ast.ClassDef)}
    own = {name: node for name, node in nodes.items() if "RunEvent" in _bases(node, nodes)}
    for name, node in own.items():
        kind = getattr(importlib.import_module(module.name), name)
        hints = typing.get_type_hints(kind, include_extras=True)
        if "event" not in hints:
            continue
        texts = {key: text for each in [*_bases(node, own), name] if each in own for key, text in _texts(own[each])}
        fields: dict[str, Any] = {}
        inline = []
        for key, hint in hints.items():
            if INLINE in getattr(hint, "__metadata__", ()):
                inline.append(hint.__origin__)
            elif key not in Event.model_fields or key == "event":
                optional = typing.get_origin(hint) is typing.NotRequired
                plain = typing.get_args(hint)[0] if optional else hint
                fields[key] = (
                    plain,
                    Field(ABSENT if optional else ..., description=one_line(texts.get(key, "Name of the event."))),
                )
        model = create_model(name, __base__=Event, __doc__=one_line(ast.get_docstring(node)), **fields)
        model.also = tuple(inline)
        yield EventType(typing.get_args(hints["event"])[0], module.place, model)


def _bases(node: ast.ClassDef, nodes: dict[str, ast.ClassDef]) -> list[str]:
    """Return the names of the base classes, those of this module with their own."""
    names = [base.id for base in node.bases if isinstance(base, ast.Name)]
    return [inner for name in names for inner in [*(_bases(nodes[name], nodes) if name in nodes else ()), name]]


def _texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the docstring of each field."""
    for field, text in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            yield field.target.id, str(getattr(text.value, "value", ""))


def _recorded(module: _Module) -> Iterator[EventType]:
    """Yield the events of the calls of a module, with the fields that the calls name."""
    for call in ast.walk(module.tree):
        if not isinstance(call, ast.Call) or not call.args or _called(call) not in EMITTERS:
            continue
        keys = [word.arg for word in call.keywords]
        for argument in call.args:
            named = argument.keys if isinstance(argument, ast.Dict) else []
            keys += [key.value if isinstance(key, ast.Constant) else None for key in named]
        fields: dict[str, Any] = {key: (Any, Field(description="A value.")) for key in keys if isinstance(key, str)}
        for name in filter(_NAME.fullmatch, _literals(call.args[0], module.tree)):
            text = module.comment(call, "Event") or f"It is recorded by `{module.place}`."
            base = OpenEvent if None in keys else Event
            yield EventType(
                name,
                module.place,
                create_model(name, __base__=base, __doc__=text, event=(Literal[name], ...), **fields),
            )


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _literals(node: ast.expr, tree: ast.Module) -> Iterator[str]:
    """Yield the texts that an argument may be: its own, or those that are assigned to its name in the module."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        for each in ast.walk(tree):
            if isinstance(each, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == node.id for target in each.targets
            ):
                values = [each.value.body, each.value.orelse] if isinstance(each.value, ast.IfExp) else [each.value]
                yield from (one.value for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _logged(module: _Module) -> Iterator[LogMessage]:
    if "log" not in module.text:
        return
    chosen = {
        node.targets[0].id: _methods(node.value)  # such as `report = log.info if quiet else log.warning`
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.IfExp)
    }
    for call in ast.walk(module.tree):
        if not isinstance(call, ast.Call) or not call.args:
            continue
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        levels = chosen.get(name, ()) or (_methods(call.func) if isinstance(call.func, ast.Attribute) else ())
        if levels:
            fields = tuple(word.arg or "..." for word in call.keywords if word.arg != "exc_info")
            level = " or ".join("error" if each == "exception" else each for each in levels)
            yield LogMessage(level, _text(call.args[0]), fields, module.place, module.comment(call, "Log"))


def _methods(node: ast.expr) -> tuple[str, ...]:
    """Return the methods of loggers that an expression names, such as `log.info`."""
    attributes = [each for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr in LEVELS]
    return tuple(each.attr for each in attributes if ast.unparse(each.value).startswith(("log", "structlog.")))


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part.value if isinstance(part, ast.FormattedValue) else part) for part in parts)
        case ast.BinOp(left=left, right=right):
            return _text(left) + _text(right)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return f"{{{name}}}"
        case ast.Subscript(value=inner) | ast.IfExp(body=inner):
            return _text(inner)
    return "{...}"
