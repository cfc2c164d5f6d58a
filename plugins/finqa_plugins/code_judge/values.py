"""Plain data as text, by value: no pickle, no eval, no code of anybody's class. The box runs this very source.

JSON has null, booleans, strings, floats and small integers itself; everything else is a list that begins with its tag:
`["tuple", 1, 2]`. Only exact types are taken: a subclass may have an `==` of its own.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

MAX_DEPTH = 64
MAX_ITEMS = 200_000
MAX_MEMBERS = 10_000
"""Of one set or mapping: members chosen to have one hash take quadratic time."""
MAX_BITS = 2**16
_PLAIN_BITS = 63

_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_HASHED = ("set", "frozenset", "dict", "Counter", "OrderedDict", "defaultdict")
_MODULES = {
    "Counter": "collections",
    "OrderedDict": "collections",
    "defaultdict": "collections",
    "deque": "collections",
    "Decimal": "decimal",
    "Fraction": "fractions",
    "date": "datetime",
    "datetime": "datetime",
    "time": "datetime",
    "timedelta": "datetime",
}


class Unencodable(ValueError):
    """The value is no plain data, or too large; the message says which."""


class Malformed(ValueError):
    """The text was not made by `encode`."""


def encode(value: object) -> str:
    """One line of ASCII.

    Raises:
        Unencodable: A type is not among those of this module, or the value is too deep or too large.
    """
    return json.dumps(_Encoder().form(value, 0), separators=(",", ":"), allow_nan=False)


def decode(text: str) -> Any:
    """The value; whatever the text says, it is plain data and takes bounded time.

    A defaultdict comes back without its factory and a deque without its limit: neither is part of its value.

    Raises:
        Malformed: The text is no encoded value.
    """
    try:
        return _decoded(json.loads(text, parse_constant=_refuse), 0)
    except Malformed:
        raise
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
        raise Malformed(f"no encoded value: {type(error).__name__}") from error


def equal(one: object, other: object, tolerance: float = 0.0) -> bool:
    """Equality of decoded values: Python's `==`, or with floats that differ by `tolerance`, relative or absolute.

    Only numbers in lists, tuples and values of mappings are compared with the tolerance.
    """
    if not tolerance:
        return bool(one == other)
    if isinstance(one, float) or isinstance(other, float):
        try:
            return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)  # type: ignore[arg-type]
        except (TypeError, OverflowError):
            return False
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        alike = isinstance(one, list) == isinstance(other, list) and len(one) == len(other)
        return alike and all(equal(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key], tolerance) for key in one)
    return bool(one == other)


class _Encoder:
    def __init__(self) -> None:
        self._items = 0

    def form(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self._items += 1
        if depth > MAX_DEPTH:
            raise Unencodable(f"the value is nested more than {MAX_DEPTH} deep")
        if self._items > MAX_ITEMS:
            raise Unencodable(f"the value has more than {MAX_ITEMS} items")
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return _integer(value)
        if kind is float:
            return value if math.isfinite(value) else ["float", repr(value)]
        if kind in (list, tuple):
            return [kind.__name__, *(self.form(item, depth + 1) for item in value)]
        if kind in (set, frozenset):
            _check_members(value)
            return [kind.__name__, *sorted((self.form(item, depth + 1) for item in value), key=json.dumps)]
        if kind is dict:
            return ["dict", *self._pairs(value, depth)]
        return self._rarer(value, kind, depth)

    def _rarer(self, value: Any, kind: type, depth: int) -> list[Any]:
        if kind is complex:
            return ["complex", self.form(value.real, depth + 1), self.form(value.imag, depth + 1)]
        if kind in (bytes, bytearray):
            return [kind.__name__, value.hex()]
        if kind is range:
            return ["range", *map(_integer, (value.start, value.stop, value.step))]
        name = kind.__name__
        module = sys.modules.get(_MODULES.get(name, ""))
        if module is None or getattr(module, name, None) is not kind:
            raise Unencodable(f"a value of type {name[:80]} is no plain data")
        if name in ("Counter", "OrderedDict", "defaultdict"):
            return [name, *self._pairs(value, depth)]
        if name == "deque":
            return [name, *(self.form(item, depth + 1) for item in value)]
        if name == "Fraction":
            return [name, _integer(value.numerator), _integer(value.denominator)]
        if name == "timedelta":
            return [name, value.days, value.seconds, value.microseconds]
        return [name, str(value) if name == "Decimal" else value.isoformat()]

    def _pairs(self, value: dict[Any, Any], depth: int) -> Iterable[Any]:
        _check_members(value)
        return [self.form(part, depth + 1) for pair in value.items() for part in pair]


def _integer(value: int) -> Any:
    if value.bit_length() > MAX_BITS:
        raise Unencodable(f"the value has an integer of more than {MAX_BITS} bits")
    return value if value.bit_length() <= _PLAIN_BITS else ["int", hex(value)]


def _check_members(value: Any) -> None:
    if len(value) > MAX_MEMBERS:
        raise Unencodable(f"the value has a {type(value).__name__} of more than {MAX_MEMBERS} members")


def _refuse(name: str) -> None:
    raise Malformed(f"no encoded value: {name}")


def _decoded(form: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise Malformed("nested too deep")
    if not isinstance(form, list):
        if isinstance(form, dict):
            raise Malformed("no encoded value: an object")
        return form
    tag, *parts = form
    if tag in ("int", "float", "bytes", "bytearray", "Decimal", "date", "datetime", "time"):
        (text,) = parts
        return _from_text(tag, text)
    items = [_decoded(part, depth + 1) for part in parts]
    if tag in _HASHED and len(items) > (1 if "set" in tag else 2) * MAX_MEMBERS:
        raise Malformed("too many members")
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](items)
    if tag in ("range", "complex"):
        return (range if tag == "range" else complex)(*items)
    if tag == "dict":
        return dict(zip(items[::2], items[1::2], strict=True))
    kind = getattr(importlib.import_module(_MODULES[tag]), tag)
    if tag in ("Fraction", "timedelta"):
        return kind(*items)
    if tag == "deque":
        return kind(items)
    pairs = dict(zip(items[::2], items[1::2], strict=True))
    return kind(None, pairs) if tag == "defaultdict" else kind(pairs)


def _from_text(tag: str, text: str) -> Any:
    if not isinstance(text, str):
        raise Malformed("no encoded value: a text is missing")
    if tag == "int":
        if len(text) > MAX_BITS // 4 + 3:
            raise Malformed("the integer is too long")
        return int(text, 16)
    if tag == "float":
        return float(text)
    if tag in ("bytes", "bytearray"):
        return (bytes if tag == "bytes" else bytearray).fromhex(text)
    kind = getattr(importlib.import_module(_MODULES[tag]), tag)
    return kind(text) if tag == "Decimal" else kind.fromisoformat(text)
