"""Checks of values of data files: size, depth, valid text, and names that are safe as file names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MAX_TEXT = 1_000_000
"""Characters of one cell or field. The longest text of FinQA has some ten thousand."""

MAX_DEPTH = 64
MAX_COLUMNS = 1000
"""Largest number of columns of a table; SQLite supports 2000."""

MAX_NAME_BYTES = 200

_LEAVES = (str, int, float, bool, type(None))


def text_fault(text: str) -> str:
    """Returns why a text is not supported, or "" if it is."""
    if len(text) > MAX_TEXT:
        return f"has {len(text)} characters, but at most {MAX_TEXT} are supported"
    if "\0" in text:
        return "holds a NUL character"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "is not valid UTF-8"
    return ""


def first_fault(fields: Mapping[str, object]) -> tuple[str, str] | None:
    """Returns place (`qa.question`, `table[3][2]`) and fault of the first invalid value, at any depth."""
    stack = [(name, value, 1) for name, value in reversed(list(fields.items()))]
    while stack:
        place, value, depth = stack.pop()
        if isinstance(value, str):
            if reason := text_fault(value):
                return place, reason
        elif isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                return place.partition("[")[0].partition(".")[0], f"is nested more than {MAX_DEPTH} levels deep"
            if isinstance(value, dict) and (reason := _key_fault(value)):
                return place, reason
            items: Iterable[tuple[str, object]] = (
                ((f"{place}.{key}", item) for key, item in value.items())
                if isinstance(value, dict)
                else ((f"{place}[{number}]", item) for number, item in enumerate(value))
            )
            stack.extend((where, item, depth + 1) for where, item in reversed(list(items)))
        elif not isinstance(value, _LEAVES):
            return place, f"must be a text or a number, but is of type {type(value).__name__}"
    return None


def name_fault(name: str) -> str:
    """Returns why a company or table cannot have this name, or "". Names become file names, so they must be safe."""
    if not name.strip() or name != name.strip() or name.startswith("."):
        return "is empty, begins with a dot, or has blanks around it"
    if any(character in "/\\" or not character.isprintable() for character in name):
        return "contains a slash, a backslash or a control character"
    if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES} bytes"
    return ""


def clean_name(name: str) -> str:
    """Returns a name that was made from a file, sheet or cell in a form that `name_fault` accepts."""
    printable = "".join(letter if letter.isprintable() and letter not in "/\\" else " " for letter in name)
    plain = " ".join(printable.split()).lstrip(". ")
    return plain.encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore").strip() or "unnamed"


def repeated(names: Iterable[str]) -> str:
    """Returns the first name that occurs twice, ignoring case, or "" if there is none."""
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            return name
        seen.add(name.casefold())
    return ""


def _key_fault(value: Mapping[object, object]) -> str:
    for key in value:
        if not isinstance(key, str):
            return f"has a key that is not a text: {key!r}"
        if reason := text_fault(key):
            return f"has a key that {reason}"
    return ""
