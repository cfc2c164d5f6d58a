from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_plugins.sandboxes._execution.python_values import MAX_MEMBERS, Malformed, Unencodable, decode, encode, equal

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.fractions(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
plain = st.recursive(
    hashable | st.complex_numbers(allow_nan=False) | st.decimals(allow_nan=False) | st.datetimes() | st.timedeltas(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
    ),
    max_leaves=10,
)


def types_of(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return type(value), [types_of(item) for item in value]
    return type(value)


@settings(max_examples=60, deadline=None)
@given(plain)
def test_plain_data_comes_back_equal_and_of_the_same_types(value: object) -> None:
    text = encode(value)
    assert text.isascii() and "\n" not in text
    found = decode(text)
    assert equal(found, value) and types_of(found) == types_of(value)
    assert encode(found) == text


@pytest.mark.parametrize(
    "value",
    [
        10**4000,
        -(2**70),
        -0.0,
        math.inf,
        range(2, 9, 3),
        bytearray(b"\x00\xff"),
        Counter("hello"),
        OrderedDict(b=1, a=2),
        defaultdict(list, a=[1]),
        deque([1, 2]),
        date(2020, 2, 29),
        time(1, 2, 3),
        datetime(2020, 1, 1, tzinfo=UTC),
        timedelta(days=-1, microseconds=5),
        Decimal("1.10"),
        Fraction(1, 3),
        {(1, "a"): {None: {1, 2}}},
        "\ud800\x00",
    ],
    ids=lambda value: type(value).__name__,
)
def test_rarer_values(value: object) -> None:
    found = decode(encode(value))
    assert found == value and type(found) is type(value)


def test_nan_comes_back_and_equals_nothing() -> None:
    found = decode(encode([math.nan]))
    assert math.isnan(found[0]) and not equal(found, [*found, 1]) and not equal(found[0], found[0])


class Anything(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


Point = namedtuple("Point", "x y")


class Own:
    """No plain data."""


class Words(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(["other"])

    def __len__(self) -> int:
        return 0


class Color(IntEnum):
    RED = 1


class Name(str, Enum):  # noqa: UP042
    A = "a"


@dataclass
class Pair:
    x: int
    note: str = field(default="", compare=False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Anything(7), 7),
        ([Point(1, [Point(2, 3)])], [(1, [(2, 3)])]),
        (Words("ab"), ["a", "b"]),
        (Color.RED, 1),
        (Name.A, "a"),
        ({Color.RED: Name.A}, {1: "a"}),
        ({1: 2}.keys(), {1}),
        (OrderedDict(a=1).items(), {("a", 1)}),
        (type("Half", (float,), {"__repr__": lambda self: "9"})(0.5), 0.5),
        (type("Table", (dict,), {"items": lambda self: []})(a=1), {"a": 1}),
    ],
    ids=str,
)
def test_a_subclass_is_its_plain_base(value: object, expected: object) -> None:
    found = decode(encode(value))
    assert equal(found, expected) and types_of(found) == types_of(expected)
    assert not equal(decode(encode(Anything(7))), 8)


def test_a_dataclass_equals_one_of_its_class_with_the_same_fields() -> None:
    one = decode(encode(Pair(1, "a")))
    assert one == decode(encode(Pair(1, "b"))) != decode(encode(Pair(2, "a"))) and one != (1,)


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Own(), "Own"),
        ({1: 2}.values(), "dict_values"),
        ((x for x in "ab"), "generator"),
        (len, "builtin_function_or_method"),
        (type, "type"),
        (nested(70), "deep"),
        ([0] * 200_001, "items"),
        (set(range(MAX_MEMBERS + 1)), "members"),
        (1 << 100_000, "bits"),
    ],
    ids=lambda value: "" if not isinstance(value, str) else value,
)
def test_other_values_are_refused(value: object, reason: str) -> None:
    with pytest.raises(Unencodable, match=reason):
        encode(value)


def test_what_shares_parts_without_end_is_refused() -> None:
    shared: list[object] = [1]
    for _ in range(60):
        shared = [shared, shared]
    with pytest.raises(Unencodable, match="items"):
        encode(shared)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["tuple", "set", "int", "dict"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)
tags = st.sampled_from(
    [
        "list",
        "set",
        "int",
        "float",
        "dict",
        "range",
        "complex",
        "Counter",
        "Decimal",
        "Fraction",
        "timedelta",
        "datetime",
    ]
)


@settings(max_examples=80, deadline=None)
@given(st.text() | json_values.map(json.dumps) | st.tuples(tags, json_values).map(json.dumps))
def test_any_text_is_a_value_or_malformed(text: str) -> None:
    try:
        value = decode(text)
    except Malformed:
        return
    assert type(decode(encode(value))) is type(value)  # what may come in may go out, to where verdicts are made
    assert equal(value, 1.5, 1e-9) is (type(value) is float and math.isclose(value, 1.5))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" + "[" * 80 + "]" * 81,
        "NaN",
        '{"a": 1}',
        "[]",
        '["os", "system"]',
        '["int", "0x' + "f" * 100_000 + '"]',
        '["int", "0x' + "f" * 16_385 + '"]',  # four bits more than go out again
        "9" * 5000,
        '["set", ["list"]]',
        '["dict", 1]',
        '["range", 1, 2, 0]',
        json.dumps(["set", *range(MAX_MEMBERS + 1)]),
        json.dumps(["list", *[1] * 200_001]),
        '["Fraction", "1e999999999"]',
        '["Fraction", ["Decimal", "1E+999999999"], 1]',
        '["Fraction", true, 2]',
        '["complex", "1+2j"]',
        '["timedelta", 1.5]',
        json.dumps(["set", *(number * (2**61 - 1) for number in range(100))]),  # all of hash 0
        json.dumps(["dict", *(part for number in range(100) for part in (number * (2**61 - 1), 0))]),
    ],
    ids=lambda text: text[:40],
)
def test_hostile_texts_are_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        decode(text)


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "expected"),
    [
        (1, 1.0, 0, True),
        (True, 1, 0, True),
        ([1], (1,), 0, False),
        (0.1 + 0.2, 0.3, 0, False),
        (0.1 + 0.2, 0.3, 1e-9, True),
        ([{"a": (0.1 + 0.2,)}], [{"a": (0.3,)}], 1e-9, True),
        ([0.3], (0.3,), 1e-9, False),
        ([0.3], [0.3, 0.3], 1e-9, False),
        (math.nan, math.nan, 1e-9, False),
        ("a", 0.5, 1e-9, False),
        (10**400, 1.5, 1e-9, False),
        (Counter(a=1), {"a": 1}, 1e-9, True),
        (Decimal("sNaN"), 5, 0, False),
        ([Decimal("sNaN")], [5.0], 1e-9, False),
        ({"a": 1}, {"b": 1}, 1e-9, False),
    ],
)
def test_equality(one: object, other: object, tolerance: float, expected: bool) -> None:
    assert equal(one, other, tolerance) is expected
    assert equal(other, one, tolerance) is expected
