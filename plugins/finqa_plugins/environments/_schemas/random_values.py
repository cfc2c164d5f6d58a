"""Random values of a JSON schema. Words and numbers come from a given text, so that some of them make sense. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_DEPTH = 4
_WORD = re.compile(r"[^\W\d_][\w-]*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_ALTERNATIVES = re.compile(r"\^?\(?(?:\?:)?(?P<words>[\w -]+(?:\|[\w -]+)*)\)?\$?")
_QUOTED = re.compile(r"""(?<!\w)(?P<quote>['"`])(?P<word>[\w-]+)(?P=quote)(?!\w)""")


def draw_value(
    schema: Any, rng: random.Random, text: str, *, root: Mapping[str, Any] | None = None, depth: int = 0
) -> Any:
    """Draw a value that fits a schema, as far as its keywords are known; other keywords are ignored.

    Args:
        schema: A JSON schema: `enum`, `const`, `$ref` into `$defs`, `anyOf`, `oneOf`, `type`, limits of numbers and
            lengths, and a `pattern` of fixed words count.
        rng: Source of every choice.
        text: Source of strings and of numbers without limits. A string may also be a word that the schema's description
            has in quotes, such a number also one from 0 to 9.
        root: The schema in which `$ref` is looked up; None: `schema`.
        depth: Nesting so far; from `MAX_DEPTH` on, optional parts are left out.
    """
    root = root if root is not None else schema if isinstance(schema, Mapping) else {}
    if not isinstance(schema, Mapping):
        return _word(rng, text)
    if "$ref" in schema:
        target = root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
        return draw_value(target, rng, text, root=root, depth=depth + 1) if depth < 2 * MAX_DEPTH else None
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), Sequence) and schema["enum"]:
        return rng.choice(list(schema["enum"]))
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), Sequence) and schema[name]:
            return draw_value(rng.choice(list(schema[name])), rng, text, root=root, depth=depth + 1)
    return _of_type(schema, rng, text, root, depth)


def _of_type(schema: Mapping[str, Any], rng: random.Random, text: str, root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        kind = rng.choice(list(kind)) if kind else "string"
    if kind == "boolean":
        return rng.random() < 0.5
    if kind in ("integer", "number"):
        return _number(schema, rng, text, whole=kind == "integer")
    if kind == "null":
        return None
    if kind == "array":
        least = int(schema.get("minItems", 0))
        most = min(int(schema.get("maxItems", least + 3)), least + 3)
        count = rng.randint(least, max(least, most)) if depth < MAX_DEPTH else least
        items = schema.get("items", {"type": "string"})
        return [draw_value(items, rng, text, root=root, depth=depth + 1) for _ in range(count)]
    if kind == "object":
        required = set(schema.get("required") or ())
        properties = schema.get("properties") or {}
        chosen = [name for name in properties if name in required or (depth < MAX_DEPTH and rng.random() < 0.5)]
        return {name: draw_value(properties[name], rng, text, root=root, depth=depth + 1) for name in chosen}
    return _text(schema, rng, text)


def _text(schema: Mapping[str, Any], rng: random.Random, text: str) -> str:
    words = _ALTERNATIVES.fullmatch(str(schema.get("pattern") or ""))
    if words is not None:
        return str(rng.choice(words["words"].split("|")))
    quoted = [found["word"] for found in _QUOTED.finditer(str(schema.get("description") or ""))]
    return str(rng.choice(quoted)) if quoted and rng.random() < 0.5 else _word(rng, text)


def _number(schema: Mapping[str, Any], rng: random.Random, text: str, *, whole: bool) -> float:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    if least is None and most is None:
        known = _NUMBER.findall(text)
        value = float(rng.choice(known)) if known and rng.random() < 0.5 else float(rng.randint(0, 9))
        return int(value) if whole else value
    low = float(least if least is not None else min(0, most))
    high = float(most if most is not None else low + 9)
    if not whole:
        return round(rng.uniform(low, high), 3)
    first = int(low) + ("exclusiveMinimum" in schema)
    return rng.randint(first, max(first, int(high) - ("exclusiveMaximum" in schema)))


def _word(rng: random.Random, text: str) -> str:
    words = _WORD.findall(text)
    return rng.choice(words) if words else "word"
