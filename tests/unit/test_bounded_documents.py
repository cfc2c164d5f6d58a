"""JSON, YAML and TOML from outside: each document is read as its parser reads it, or refused with a ValueError."""

from __future__ import annotations

import json
import math
import random
import resource
import time
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from finqa_cli.documents import DEEPEST, MAX_NODES, MAX_YAML, parse_json, parse_toml, parse_yaml

READERS: dict[str, Callable[[str], Any]] = {"json": parse_json, "toml": parse_toml, "yaml": parse_yaml}
FINE = (ValueError, yaml.YAMLError)

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


@given(values)
def test_json_is_read_as_python_reads_it(value: Any) -> None:
    text = json.dumps(value)
    assert parse_json(text) == parse_json(text.encode()) == parse_json(text, unique=True) == value


@given(values)
def test_yaml_is_read_as_its_parser_reads_it(value: Any) -> None:
    text = yaml.safe_dump(value, allow_unicode=False)
    assert parse_yaml(text) == yaml.safe_load(text)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{below}'] * 10)}]" for below, name in zip("abcdefg", "bcdefgh", strict=True)
)
HOSTILE = [
    ("json", "[" * 100_000),
    ("json", "[" * 500 + "]" * 500),
    ("json", '{"a":' * 5000 + "1" + "}" * 5000),
    ("json", "9" * 100_000),
    ("json", ""),
    ("json", " \n"),
    ("toml", "a = " + "[" * 100_000),
    ("toml", "a = " + "[" * 400 + "]" * 400),
    ("toml", ".".join(["a"] * 900) + " = 1"),
    ("toml", "a = " + "9" * 100_000),
    ("yaml", "[" * 50_000),
    ("yaml", "- " * 5000 + "x"),
    ("yaml", "model: &x\n  name: *x"),
    ("yaml", "&x [*x]"),
    ("yaml", BOMB),
    ("yaml", "x: " + "y" * MAX_YAML),
    ("yaml", "!!python/object/apply:os.system ['true']"),
    ("yaml", "a: *b"),
    ("yaml", "2024-99-99"),
    ("yaml", "9" * 10_000),
]


@pytest.mark.parametrize(("form", "text"), HOSTILE, ids=[f"{form}-{text[:12]!r}" for form, text in HOSTILE])
def test_hostile_documents_are_refused_quickly(form: str, text: str) -> None:
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FINE):
        READERS[form](text)
    assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_memory_and_recursion_are_blamed_on_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, reason in ((MemoryError, "memory"), (RecursionError, "nested too deeply")):

        def fail(*_: Any, error: type[Exception] = error, **__: Any) -> None:
            raise error

        for module, name in ((json, "loads"), (tomllib, "loads"), (yaml, "load")):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, fail)
                with pytest.raises(ValueError, match=reason):
                    READERS[module.__name__.replace("tomllib", "toml")]("{}" if module is not tomllib else "a = 1")


def test_aliases_that_are_harmless_are_read() -> None:
    assert parse_yaml("base: &b {x: 1}\none: *b\ntwo: {<<: *b, y: 2}") == {
        "base": {"x": 1},
        "one": {"x": 1},
        "two": {"x": 1, "y": 2},
    }
    with pytest.raises(ValueError, match=f"{MAX_NODES:,}"):
        parse_yaml(BOMB)


@given(st.integers(1, 300))
@example(DEEPEST)
@example(DEEPEST + 1)
@settings(deadline=None)
def test_the_depth_is_the_same_in_all_formats(depth: int) -> None:
    inner = "[" * (depth - 1) + "]" * (depth - 1) if depth > 1 else "1"
    for form, text in (("json", f'{{"a": {inner}}}'), ("toml", f"a = {inner}"), ("yaml", f"a: {inner}")):
        try:
            READERS[form](text)
            assert depth <= DEEPEST
        except ValueError:
            assert depth > DEEPEST


def test_repeated_keys_and_constants_are_refused_on_request() -> None:
    assert parse_json('{"a": 1, "a": 2}') == {"a": 2} and math.isnan(parse_json("NaN"))
    with pytest.raises(ValueError, match="'a' twice"):
        parse_json('{"a": 1, "b": 0, "a": 2}', unique=True)
    with pytest.raises(ValueError, match="Infinity"):
        parse_json("[Infinity]", finite=True)


_PIECES = (
    *("{", "}", "[", "]", ":", ",", '"', "'", "\\", "\n", "  ", "- ", "&a ", "*a", "!!", "<<: ", "#", "=", "a", "."),
    *("NaN", "1e999", "\x00", "\ud800", "\u2028", "---", "? ", "| ", "> ", "9" * 50, "1979-05-27", '"""', "[[", "]]"),
)
_any = st.text(st.characters(), max_size=60) | st.lists(st.sampled_from(_PIECES), max_size=60).map("".join)


def _check_any(text: str) -> None:
    for reader in READERS.values():
        try:
            reader(text)
        except FINE:
            continue


@given(_any)
def test_any_text_is_read_or_refused(text: str) -> None:
    _check_any(text)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_hundred_thousand_texts_are_read_or_refused() -> None:
    dice, before = random.Random(49), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100_000):
        began = time.monotonic()
        _check_any("".join(dice.choices(_PIECES, k=dice.randrange(1, 60))))
        assert time.monotonic() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
