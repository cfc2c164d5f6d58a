"""The readers of JSON, YAML and TOML that came from outside: bounded in size, depth and references.

Each raises ValueError only, also where the input exhausts memory or the stack. So a hostile document is an error of
that document wherever a malformed one is. Messages are the ends of sentences about the document.

`call_bounded` is for input that is a program, such as a chat template: nothing can be counted before it runs.
"""

from __future__ import annotations

import ctypes
import json
import resource
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

DEEPEST = 128
"""Most levels of lists and objects in each other. Code that walks through a value may be recursive."""

MAX_JSON = 2**30
MAX_TOML = 2**24
MAX_YAML = 2**18
"""Most characters of a document. Python's parser of YAML reads about 100 kB in a second."""

MAX_NODES = 100_000
"""Most values in a YAML document, where each alias counts as often as it stands for values."""

_LOOK_S = 0.02
"""Seconds between looks at the memory of `call_bounded`."""


class OutOfBoundsError(ValueError):
    """Work exceeded a limit of `call_bounded`; the message states which."""


class _EndOfWork(BaseException):
    """Raised in the thread of `call_bounded`. It is no Exception, so that no program catches it."""


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
    # A walk through the value takes longer than reading it, and each reply of an environment's server is read here.
    return value if _brackets(text) <= DEEPEST else _not_deep(value, "JSON")


def _brackets(text: str | bytes) -> int:
    return text.count("{") + text.count("[") if isinstance(text, str) else text.count(b"{") + text.count(b"[")


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


def call_bounded(work: Callable[[], Result], *, seconds: float, megabytes: float) -> Result:
    """Call a function that runs a foreign program in Python, such as a template of Jinja, within time and memory.

    Another thread looks at both, and raises an exception between two instructions of the program. A single operation
    that is not Python, such as the repetition of a string, is ended by its own end only.

    Args:
        work: The function.
        seconds: Longest time.
        megabytes: Most that the memory of this process may grow meanwhile, by whatever part of it.

    Raises:
        OutOfBoundsError: It exceeded a limit, the stack or the memory; the message states which.
    """
    thread, ended, lock = threading.get_ident(), threading.Event(), threading.Lock()
    until, most = time.monotonic() + seconds, _resident_bytes() + megabytes * 1e6
    reason = ""

    def watch() -> None:
        nonlocal reason
        while not ended.wait(_LOOK_S):
            with lock:
                is_late = time.monotonic() >= until
                if ended.is_set() or not (is_late or _resident_bytes() > most):
                    continue
                reason = f"takes longer than {seconds:g} s" if is_late else f"needs more than {megabytes:g} MB"
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_EndOfWork))
                return

    threading.Thread(target=watch, name="bounded-work", daemon=True).start()
    try:
        try:
            return work()
        finally:
            with lock:
                ended.set()
                # An exception that was set in the last moment would be raised in code that comes later.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)
    except _EndOfWork:
        raise OutOfBoundsError(reason) from None
    except RecursionError as error:
        raise OutOfBoundsError("nests too deeply") from error
    except MemoryError as error:
        raise OutOfBoundsError("needs more memory than this process can get") from error


def _resident_bytes() -> int:
    """Memory of this process in bytes."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:  # not Linux: the most that it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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
