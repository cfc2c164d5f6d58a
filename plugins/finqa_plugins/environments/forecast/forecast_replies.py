"""What a reply states: its answer and its confidence. Pure, in time linear in the reply."""

from __future__ import annotations

import math
import re

from finqa_plugins.environments.forecast.config import Profile

_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?|\.[0-9]{1,20}")


def stated_answer(text: str, profile: Profile) -> str | None:
    """What stands in the answer tags; None when nothing is stated so.

    `versatile` takes the last of several answers, and tags in small letters only. `strict` takes one only, since of
    several the best could be meant, and it looks for it behind the reasoning of models that think between `<think>`
    tags.
    """
    if profile == "versatile":
        found = _between(text, text, "answer")
        return found[-1].strip() if found else None
    return _only(text, "answer")


def stated_confidence(text: str) -> float | None:
    """The number from 0 to 1, or the percentage, in the one pair of confidence tags; None when there is none such."""
    stated = _only(text, "confidence")
    if stated is None:
        return None
    percent = stated.endswith("%")
    number = stated.removesuffix("%").strip()
    if not _NUMBER.fullmatch(number):
        return None
    value = float(number) / (100 if percent else 1)
    return value if math.isfinite(value) and value <= 1 else None


def _only(text: str, name: str) -> str | None:
    """What is in the one pair of tags of this name; None when there are more, or nothing is in it."""
    spoken = text.rpartition("</think>")[2].lower()
    found = _tagged(text.rpartition("</think>")[2], name)
    if len(found) != 1 or spoken.count(f"<{name}>") != 1 or spoken.count(f"</{name}>") != 1:
        return None
    return found[0].strip() or None


def _tagged(text: str, name: str) -> list[str]:
    """What is between tags of a name; case does not count."""
    return _between(text, _lower(text), name)


def _between(text: str, searched: str, name: str) -> list[str]:
    """The parts of `text` where `searched` has tags around. Each tag is looked for once, so no text is slow."""
    opening, closing = f"<{name}>", f"</{name}>"
    found = []
    place = searched.find(opening)
    while place >= 0:
        start = place + len(opening)
        end = searched.find(closing, start)
        if end < 0:
            break
        found.append(text[start:end])
        place = searched.find(opening, end)
    return found


def _lower(text: str) -> str:
    """ASCII letters only, so that places stay what they are."""
    return text.translate(_SMALL)


_SMALL = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
