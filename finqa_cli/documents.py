"""The readers of JSON, YAML and TOML that came from outside: bounded in size, depth and references.

Each raises ValueError only, also where the input exhausts memory or the stack. So a hostile document is an error of
that document wherever a malformed one is. Messages are the ends of sentences about the document.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DEEPEST = 128
"""Most levels of lists and objects in each other. Code that walks through a value may be recursive."""

MAX_JSON = 2**30
MAX_TOML = 2**24
MAX_YAML = 2**18
"""Most characters of a document. Python's parser of YAML reads about 100 kB in a second."""

MAX_NODES = 100_000
"""Most values in a YAML document, where each alias counts as often as it stands for values."""


def parse_json(text: str | bytes, *, unique: bool = False, finite: bool = False) -> Any:
    """Return the JSON value of a text.

    Args:
        text: The document; bytes are UTF-8.
        unique: Refuse an object that repeats a key, instead of keeping the last value as Python does.
        finite: Refuse NaN and Infinity, which Python reads, but which are not JSON.

    Raises:
        ValueError: It is not JSON, or too large or too deep; the message states what is wrong and where.
    """
    if not text or text.isspace():
        raise ValueError("is empty")
    with _bounded(text, MAX_JSON, "JSON"):
        try:
            value: Any = json.loads(
                text,
                object_pairs_hook=_without_repeats if unique else None,
                parse_constant=_refuse_constant if finite else None,
            )
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            raise ValueError(f"is not valid JSON: {error.msg} at {place}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"is not valid JSON: {error}") from error
        except ValueError as error:  # an integer of more digits than Python converts, or a key that occurs twice
            raise ValueError(f"is not readable JSON: {error}") from error
    return _not_deep(value, "JSON")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text.

    Raises:
        tomllib.TOMLDecodeError: It is not TOML; a ValueError.
        ValueError: It is too large or too deep, or has a number that is too long.
    """
    with _bounded(text, MAX_TOML, "TOML"):
        table = tomllib.loads(text)
    found: dict[str, Any] = _not_deep(table, "TOML")
    return found


def parse_yaml(text: str, loader: Any = None) -> Any:
    """Return the value of a YAML text. Aliases are read, unless they lead into themselves or stand for too much.

    Args:
        text: The document.
        loader: Subclass of `yaml.SafeLoader`; None: that class.

    Raises:
        yaml.YAMLError: It is not YAML.
        ValueError: It is too large or too deep, has aliases as above, or a scalar that Python cannot read.
    """
    import yaml

    with _bounded(text, MAX_YAML, "YAML"):
        _check_events(yaml.parse(text, Loader=yaml.SafeLoader))
        return yaml.load(text, Loader=loader or yaml.SafeLoader)


def _check_events(events: Any) -> None:
    """Count the values of a YAML document as if each alias were written out."""
    sizes: dict[str, int] = {}  # of the values with an anchor
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]  # anchor, and the count before it
    count = 0
    for event in events:
        kind, anchor = type(event).__name__, getattr(event, "anchor", None)
        if kind == "AliasEvent":
            if any(anchor == each for each, _ in open_nodes):
                raise ValueError(f"is not usable YAML: the alias *{anchor} contains itself")
            count += sizes.get(str(anchor), 1)
        elif kind == "ScalarEvent":
            count += 1
            if anchor:
                sizes[anchor] = 1
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            open_nodes.append((anchor, count))
            count += 1
            if len(open_nodes) > DEEPEST + 1:
                raise ValueError(f"is not readable YAML: nested too deeply, in more than {DEEPEST} levels")
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = count - before
        if count > MAX_NODES:
            raise ValueError(f"is not usable YAML: it has more than {MAX_NODES:,} values")


@contextmanager
def _bounded(text: str | bytes, most: int, form: str) -> Iterator[None]:
    if len(text) > most:
        raise ValueError(f"is not readable {form}: it has {len(text):,} characters, and at most {most:,} are read")
    try:
        yield
    except RecursionError as error:
        raise ValueError(f"is not readable {form}: nested too deeply, in more than {DEEPEST} levels") from error
    except MemoryError as error:
        raise ValueError(f"is not readable {form}: the memory of this process is too small for it") from error


def _not_deep(value: Any, form: str) -> Any:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return value
    raise ValueError(f"is not readable {form}: nested too deeply, in more than {DEEPEST} levels")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"an object names the key {twice!r} twice")
    return record


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
