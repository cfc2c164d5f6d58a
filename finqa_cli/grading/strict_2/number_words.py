"""Reads numbers in English words, such as `one thousand two hundred thirty-four` and `one half`; sets of words."""

from __future__ import annotations

from collections.abc import Sequence

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL = {"nil": 0, **{word: value for value, word in enumerate(_ONES)}}
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_TENS_VALUES = {word: 10 * place for place, word in enumerate(_TENS, start=2)}
_FRACTIONS = {
    "half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fifth": 5, "fifths": 5,
}  # fmt: skip

_STARTS = frozenset((*_SMALL, *_TENS, "half"))
VOCABULARY = frozenset((*_SMALL, *_TENS, *_LARGE, "hundred"))
_MOST_WORDS = 24


def starts_number(word: str) -> bool:
    """Returns whether a word begins a number; of a word with hyphens, all parts must be number words."""
    if "-" not in word:
        return word in _STARTS
    return all(part in _SMALL or part in _TENS_VALUES for part in word.split("-")) or fraction_word(word) != ""


def fraction_word(word: str) -> str:
    """Returns `1/2` for `one-half`; "" for other words."""
    first, _, second = word.partition("-")
    return f"{_SMALL[first]}/{_FRACTIONS[second]}" if first in _SMALL and second in _FRACTIONS else ""


def read(words: Sequence[str]) -> tuple[str, int] | None:
    """Returns the number that a sequence of words begins with, as digits, and the count of its words.

    A final scale word is not included, so that `seventy-seven million` is `77` with its unit after it. None if the
    words are not a number, as in `twenty thirty`.
    """
    if words and (fraction := fraction_word(words[0])):
        return fraction, 1
    if words and words[0] == "half":
        return "1/2", 1
    if len(words) > 1 and _SMALL.get(words[0], 99) < _FRACTIONS.get(words[1], 0):
        return f"{_SMALL[words[0]]}/{_FRACTIONS[words[1]]}", 2
    count = _length(words)
    point = words.index("point") if "point" in words[:count] else count
    before, after = words[:point], words[point + 1 : count]
    while before and point == count and before[-1] in _LARGE:
        before, count, point = before[:-1], count - 1, point - 1
    decimals = "".join(str(_SMALL[word]) for word in after if _SMALL.get(word, 10) < 10)
    scaled = [word for word in after if word in _LARGE]
    if len(decimals) + len(scaled) != len(after) or (after and not decimals) or after[len(decimals) :] != scaled:
        return None
    whole = _whole([part for word in before if word != "and" for part in word.split("-")])
    if whole is None:
        return None
    return (f"{whole}.{decimals}" if after else str(whole)), count - len(scaled)


def _length(words: Sequence[str]) -> int:
    """Returns how many of the words belong to the number; `and` and `point` only if it continues after them."""
    count = 0
    for place, word in enumerate(words[:_MOST_WORDS]):
        joins = word in ("and", "point") and place and place + 1 < len(words)
        if joins and word == "and" and words[place - 1] not in ("hundred", *_LARGE):
            break
        if joins and _is_part(words[place + 1]):
            continue
        if not _is_part(word):
            break
        count = place + 1
    return count


def _is_part(word: str) -> bool:
    return all(part in VOCABULARY for part in word.split("-"))


def _whole(words: Sequence[str]) -> int | None:
    """Returns the value of number words, or None if they do not follow English grammar."""
    total, group, limit, last = 0, 0, 10**15, 1000
    for word in words:
        if word in _SMALL and last > _SMALL[word] and (last in (1000, 100) or (last >= 20 and 0 < _SMALL[word] < 10)):
            group, last = group + _SMALL[word], 1
        elif word in _TENS_VALUES and last >= 100:
            group, last = group + _TENS_VALUES[word], 20
        elif word == "hundred" and 0 < group < 100 and last < 100:
            group, last = group * 100, 100
        elif word in _LARGE and group > 0 and _LARGE[word] < limit:
            limit = _LARGE[word]
            total, group, last = total + group * limit, 0, 1000
        else:
            return None
    return total + group if words else None


NUMERAL = r"[0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?"
"""Pattern of a number without a sign, as prose writes it."""


def word_set(text: str) -> frozenset[str]:
    """Returns the words of a text as a set."""
    return frozenset(text.split())


DOWN = word_set(
    "decrease decreases decreased decreasing decline declines declined declining fall falls fell fallen "
    "drop drops dropped reduction reduced loss losses lost outflow outflows contraction contracted shrank "
    "shrunk shrink shrinkage deficit shortfall down lower negative minus slipped slid plunged tumbled "
    "sank lost narrowed narrower compressed eased softened slumped retreated shortened deteriorated worsened drain "
    "downturn downward dip dipped less fewer weaker outflowing unfavorable unfavourable "
    "trailed trails lagged underperformed"
)
UP = word_set(
    "increase increases increased rise rises rose risen grew grow grown gain gains gained up higher "
    "inflow inflows jumped climbed surged widened widening wider soared strengthened broadened lengthened expanded "
    "expansion improvement improved advanced positive "
    "upward plus favorable favourable"
)
