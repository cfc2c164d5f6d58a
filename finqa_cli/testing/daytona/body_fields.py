"""Fields of a request's body, read as what they must be. Everything else is refused with status 400."""

from __future__ import annotations

from collections.abc import Mapping

from finqa_cli.testing.daytona.http_messages import Refusal

Body = Mapping[str, object]


def text(body: Body, name: str) -> str:
    """A string, empty when missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refusal(400, f"{name} must be a string")
    return value or ""


def texts(body: Body, name: str) -> dict[str, str]:
    """Strings by name, none when missing."""
    value = body.get(name) or {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for pair in value.items() for item in pair):
        raise Refusal(400, f"{name} must map strings to strings")
    return value


def texts_list(body: Body, name: str) -> tuple[str, ...]:
    """A list of strings, empty when missing."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Refusal(400, f"{name} must be a list of strings")
    return tuple(value)


def number(body: Body, name: str, default: int) -> int:
    """A whole number."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refusal(400, f"{name} must be an integer number")
    return value


def whole(value: str, name: str) -> int:
    """A non-negative whole number out of a path or query."""
    if not value.isdecimal():
        raise Refusal(400, f"{name} must be a non-negative integer")
    return int(value)
