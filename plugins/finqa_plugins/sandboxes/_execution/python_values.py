"""Encodes plain data as text, by value, without pickle or eval. The sandbox runs the same source.

JSON has null, booleans, strings, floats and small integers itself; everything else is a list that begins with its tag:
`["tuple", 1, 2]`. A value of a subclass, such as a named tuple or an `IntEnum`, is encoded as its plain base, by the
methods of the base: its own `==` has no effect. Views of keys and items are sets, and a dataclass is its fields.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

MAX_DEPTH = 64
MAX_ITEMS = 200_000
MAX_MEMBERS = 10_000
"""Largest number of members of a set or mapping."""
MAX_ALIKE = 64
"""Largest number of members with equal hashes: each is compared with all others, so more would be an attack."""
MAX_BITS = 2**16
_PLAIN_BITS = 63

_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_VIEWS: tuple[Any, ...] = (type({}.keys()), type({}.items()))
_PLAIN = frozenset(
    (bool, str, int, float, complex, bytes, bytearray, range, list, tuple, set, frozenset, dict, *_VIEWS)
)
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
    """The value is not plain data, or too large; the message states which."""


class Malformed(ValueError):
    """The text was not made by `encode`."""


def encode(value: object) -> str:
    """Encode a value as one line of ASCII.

    Raises:
        Unencodable: A type is not among those of this module, or the value is too deep or too large.
    """
    return json.dumps(_Encoder().form(value, 0), separators=(",", ":"), allow_nan=False)


def decode(text: str) -> Any:
    """Decode a value. Safe for any text: the result is plain data, in bounded time.

    A defaultdict loses its factory and a deque its maximum length: neither is part of the value.

    Raises:
        Malformed: The text is not an encoded value.
    """
    try:
        return _Decoder().value(json.loads(text, parse_constant=_refuse), 0)
    except Malformed:
        raise
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
        raise Malformed(f"no encoded value: {type(error).__name__}") from error


def equal(one: object, other: object, tolerance: float = 0.0) -> bool:
    """Whether decoded values are equal: by `==`, with floats that may differ by `tolerance`, relative or absolute.

    Only numbers in lists, tuples and values of mappings are compared with the tolerance. Values that
    cannot be compared, such as a signalling NaN, are not equal.
    """
    try:
        return _equal(one, other, tolerance)
    except (ArithmeticError, TypeError, ValueError, RecursionError):
        return False


def _equal(one: object, other: object, tolerance: float) -> bool:
    if not tolerance:
        return bool(one == other)
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)  # type: ignore[arg-type]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        alike = isinstance(one, list) == isinstance(other, list) and len(one) == len(other)
        return alike and all(_equal(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key], tolerance) for key in one)
    return bool(one == other)


class _Encoder:
    def __init__(self) -> None:
        self._items = 0

    def form(self, value: Any, depth: int) -> Any:
        kind = _plain_kind(type(value))
        self._items += 1
        if depth > MAX_DEPTH:
            raise Unencodable(f"the value is nested more than {MAX_DEPTH} deep")
        if self._items > MAX_ITEMS:
            raise Unencodable(f"the value has more than {MAX_ITEMS} items")
        if value is None or kind is bool:
            return value
        if kind is str:
            return str.__str__(value)
        if kind is int:
            return _integer(int.__index__(value))
        if kind is float:
            number = float.__float__(value)
            return number if math.isfinite(number) else ["float", float.__repr__(number)]
        if kind in (list, tuple):
            return [kind.__name__, *(self.form(item, depth + 1) for item in kind.__iter__(value))]
        if kind in (set, frozenset, *_VIEWS):
            _check_members(kind.__len__(value), kind)
            name = "set" if kind in _VIEWS else kind.__name__
            return [name, *sorted((self.form(item, depth + 1) for item in kind.__iter__(value)), key=json.dumps)]
        if kind is dict:
            return ["dict", *self._pairs(value, depth)]
        return self._rarer(value, kind, depth)

    def _rarer(self, value: Any, kind: Any, depth: int) -> list[Any]:
        if kind is complex:
            return ["complex", self.form(value.real, depth + 1), self.form(value.imag, depth + 1)]
        if kind in (bytes, bytearray):
            return [kind.__name__, kind.hex(value)]
        if kind is range:
            return ["range", *map(_integer, (value.start, value.stop, value.step))]
        name = kind.__name__
        if not _is_named(kind):
            if isinstance(fields := kind.__dict__.get("__dataclass_fields__"), dict):
                return self._record(value, kind, fields, depth)
            raise Unencodable(f"a value of type {name[:80]} is not plain data")
        if name in ("Counter", "OrderedDict", "defaultdict"):
            return [name, *self._pairs(value, depth)]
        if name == "deque":
            return [name, *(self.form(item, depth + 1) for item in kind.__iter__(value))]
        if name == "Fraction":
            return [name, _integer(value.numerator), _integer(value.denominator)]
        if name == "timedelta":
            return [name, value.days, value.seconds, value.microseconds]
        return [name, kind.__str__(value) if name == "Decimal" else kind.isoformat(value)]

    def _record(self, value: Any, kind: Any, fields: dict[str, Any], depth: int) -> list[Any]:
        """Return a dataclass as a tuple of its name and fields: only one of the same class can be equal to it."""
        pairs = [
            ["tuple", str.__str__(name), self.form(object.__getattribute__(value, name), depth + 1)]
            for name, field in fields.items()
            if getattr(field, "compare", True)
        ]
        return ["tuple", f"dataclass {kind.__qualname__}", *pairs]

    def _pairs(self, value: dict[Any, Any], depth: int) -> Iterable[Any]:
        _check_members(dict.__len__(value), dict)
        return [self.form(part, depth + 1) for pair in dict.items(value) for part in pair]


def _integer(value: int) -> Any:
    if value.bit_length() > MAX_BITS:
        raise Unencodable(f"the value has an integer of more than {MAX_BITS} bits")
    return value if value.bit_length() <= _PLAIN_BITS else ["int", hex(value)]


def _plain_kind(kind: type) -> Any:
    """Return the nearest plain type that a type is or derives from; else the type itself."""
    return next((base for base in kind.__mro__ if base in _PLAIN or _is_named(base)), kind)


def _is_named(kind: type) -> bool:
    """Return whether it is one of the types of `_MODULES`."""
    module = sys.modules.get(_MODULES.get(kind.__name__, ""))
    return module is not None and getattr(module, kind.__name__, None) is kind


def _check_members(count: int, kind: type) -> None:
    if count > MAX_MEMBERS:
        raise Unencodable(f"the value has a {kind.__name__} of more than {MAX_MEMBERS} members")


def _refuse(name: str) -> None:
    raise Malformed(f"no encoded value: {name}")


class _Decoder:
    def __init__(self) -> None:
        self._items = 0

    def value(self, form: Any, depth: int) -> Any:
        self._items += 1
        if depth > MAX_DEPTH:
            raise Malformed("nested too deep")
        if self._items > MAX_ITEMS:
            raise Malformed("too many items")
        if not isinstance(form, list):
            if isinstance(form, dict):
                raise Malformed("no encoded value: an object")
            return form
        tag, *parts = form
        if tag in ("int", "float", "bytes", "bytearray", "Decimal", "date", "datetime", "time"):
            (text,) = parts
            return _from_text(tag, text)
        if tag in ("range", "Fraction", "timedelta"):
            return _from_integers(tag, parts)
        items = [self.value(part, depth + 1) for part in parts]
        if tag == "complex":
            real, imaginary = map(_float, items)
            return complex(real, imaginary)
        if tag in ("list", "tuple", "deque"):
            return (_SEQUENCES.get(tag) or _kind(tag))(items)
        if tag in ("set", "frozenset"):
            return _SEQUENCES[tag](_checked(items))
        pairs = dict(zip(_checked(items[::2]), items[1::2], strict=True))
        if tag == "dict":
            return pairs
        return _kind(tag)(None, pairs) if tag == "defaultdict" else _kind(tag)(pairs)


def _checked(members: list[Any]) -> list[Any]:
    """Return members of a set, or keys, after checking their number and hashes."""
    if len(members) > MAX_MEMBERS:
        raise Malformed("too many members")
    if members and max(Counter(map(hash, members)).values()) > MAX_ALIKE:
        raise Malformed("too many members with one hash")
    return members


def _from_integers(tag: str, parts: Sequence[Any]) -> Any:
    """Decode a value from integers only: a Fraction from "1e999999999", or such a Decimal, would need all memory."""
    integers = [_from_text(*part) if isinstance(part, list) and part[:1] == ["int"] else part for part in parts]
    if any(type(number) is not int for number in integers):
        raise Malformed(f"no {tag}")
    return (range if tag == "range" else _kind(tag))(*integers)


def _float(value: object) -> float:
    if type(value) is not float:
        raise Malformed("no complex number")
    return value


def _kind(tag: str) -> Any:
    return getattr(importlib.import_module(_MODULES[tag]), tag)


def _from_text(tag: str, text: str) -> Any:
    if not isinstance(text, str):
        raise Malformed("no encoded value: a text is missing")
    if tag == "int":
        if len(text) > MAX_BITS // 4 + 3 or (number := int(text, 16)).bit_length() > MAX_BITS:
            raise Malformed("the integer is too long")
        return number
    if tag == "float":
        return float(text)
    if tag in ("bytes", "bytearray"):
        return (bytes if tag == "bytes" else bytearray).fromhex(text)
    return _kind(tag)(text) if tag == "Decimal" else _kind(tag).fromisoformat(text)
