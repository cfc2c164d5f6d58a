"""Which value of an answer is to be compared with which value of the truth."""

from __future__ import annotations

from collections.abc import Sequence

from finqa_cli.grading.items import Item


def pair_up(submitted: Sequence[Item], expected: Sequence[Item]) -> list[tuple[Item, Item]] | str:
    """Each value of the answer, in its order, with the expected one, or why they cannot be told apart.

    A year may stand before a value that is expected without one. A name may not: `No: yes` would be two answers.
    """
    if len(submitted) != len(expected):
        return f"{len(expected)} {'value is' if len(expected) == 1 else 'values are'} expected, got {len(submitted)}."
    keys = [item.key for item in submitted if item.key]
    if len(set(keys)) < len(keys):
        return "A year or name comes twice."
    if 0 < len(keys) < len(submitted):
        return "Some values come with a year or name and some without."
    by_key = {item.key: item for item in expected if item.key}
    if keys and len(by_key) == len(expected):
        if by_key.keys() != set(keys):
            return "The years or names are not those that are expected."
        return [(item, by_key[item.key]) for item in submitted]
    if any(item.key and not item.is_of_years for item in submitted):
        return "A name or another word stands before a value, and none is expected."
    return list(zip(submitted, expected, strict=True))
