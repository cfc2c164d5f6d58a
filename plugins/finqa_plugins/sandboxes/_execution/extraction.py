"""The code in a reply."""

from __future__ import annotations

import re

_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_PLACES = (
    re.compile(r"```(?:python|py)3?[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE),
    re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL),
    re.compile(r"<code>(.*?)(?:</code>|\Z)", re.DOTALL),
)


def extract_code(text: str) -> str:
    """The first ```python block, else the first block of any kind, else `<code>`, else the text without `>>>` lines.

    Reasoning in `<think>` is not looked at. A block that the end of the reply cuts reaches to the end.
    """
    said = without_thoughts(text)
    for place in _PLACES:
        if found := place.search(said):
            return found[1].strip("\n").rstrip()
    lines = [line for line in said.splitlines() if not line.lstrip().startswith((">>>", "..."))]
    return "\n".join(lines).strip("\n").rstrip()


def without_thoughts(text: str) -> str:
    """The reply without `<think>` parts; one that the template opened ends at `</think>` all the same."""
    opened, closing, rest = text.partition("</think>")
    said = rest if closing and "<think>" not in opened else text
    return _THOUGHTS.sub("", said)
