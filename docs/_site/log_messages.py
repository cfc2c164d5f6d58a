"""The messages that finqa and its plugins log: level, text, fields and place, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LEVELS = ("debug", "info", "warning", "error", "exception")
ROOT = Path(__file__).parents[2]
PARTS = ("finqa", "finqa_cli", "plugins/finqa_plugins")


@dataclass(frozen=True, order=True)
class LogMessage:
    """One message of the log.

    Attributes:
        level: Its level, or two of them.
        text: The text; values that are known only at run time are in braces. `{event}` alone: the text is a variable.
        fields: Names of its fields; `...` for further ones that are known only at run time.
        place: Path of the module below its package.
    """

    level: str
    text: str
    fields: tuple[str, ...]
    place: str


def log_messages() -> list[LogMessage]:
    """Return every message that is logged with structlog, by place and text."""
    found = {
        message
        for part in PARTS
        for path in (ROOT / part).rglob("*.py")
        for message in _of_module(ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT / part)))
    }
    return sorted(found, key=lambda each: (each.place, each.text))


def _of_module(tree: ast.Module, place: str) -> Iterator[LogMessage]:
    chosen = {
        node.targets[0].id: _methods(node.value)  # such as `report = log.info if quiet else log.warning`
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.IfExp)
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not call.args:
            continue
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        levels = chosen.get(name, ()) or (_methods(call.func) if isinstance(call.func, ast.Attribute) else ())
        if levels:
            fields = tuple(word.arg or "..." for word in call.keywords if word.arg != "exc_info")
            level = " or ".join("error" if each == "exception" else each for each in levels)
            yield LogMessage(level=level, text=_text(call.args[0]), fields=fields, place=place)


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
