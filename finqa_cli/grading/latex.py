r"""Answers without their LaTeX and Markdown: what is inside `\boxed{...}`, and formulas as plain text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BRACES = re.compile(r"\\boxed\s{0,8}\{|\\.|[{}]", re.DOTALL)
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,)(?=[0-9]{3})")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|operatorname)\s{0,8}\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\s{0,8}\{([^{}]*)\}\s{0,8}\{([^{}]*)\}")
_ARROW = re.compile(r"\\rightarrow|\\to(?![a-z])|→|[-−]>")  # noqa: RUF001  the minus sign is what some answers carry
_LAYOUT = re.compile(r"\\(?:(?:left|right|displaystyle|qquad|quad)(?![a-z])|[()\[\];:!, $])|\*\*|[$€£`]")
_BLANKS = re.compile(r"[^\S\n]+")
_MINUS_SIGNS = str.maketrans(dict.fromkeys("−–‐‑﹣", "-"))  # noqa: RUF001  the hyphens and dashes that stand for a minus


@dataclass(frozen=True, slots=True)
class Box:
    """The contents of one box, and the text between it and its neighbours."""

    before: str
    content: str
    after: str


def boxes(text: str) -> tuple[Box, ...]:
    """All boxes, outermost only, with balanced braces inside; one that is never closed is none. A single pass."""
    spans: list[tuple[int, int, int]] = []
    opened: list[tuple[int, int] | None] = []
    box_depth = 0
    for match in _BRACES.finditer(text):
        token = match.group()
        if token.endswith("{") and token != "\\{":
            is_box = token != "{" and not box_depth
            opened.append(match.span() if is_box else None)
            box_depth = len(opened) if is_box else box_depth
        elif token == "}" and opened and (start := opened.pop()):
            spans.append((*start, match.start()))
            box_depth = 0
    edges = [0, *(end + 1 for _, _, end in spans)]
    starts = [*(start for start, _, _ in spans), len(text)]
    return tuple(
        Box(text[edges[place] : start], text[content:end], text[end + 1 : starts[place + 1]])
        for place, (start, content, end) in enumerate(spans)
    )


def plain(text: str) -> str:
    r"""Plain text in lower case: `\frac{1}{2}` is ` 1/2 `, `\text{Yes}` is ` yes `, `\%` is `%`.

    What is taken out leaves a blank, so that two numbers never grow together; currency signs are taken out, as the
    currency is not graded. Digits of other scripts stay what they are, so they are no digits.
    """
    text = _THOUSANDS.sub(",", text)
    for _ in range(3):  # a \text in a \textbf in a \frac is as deep as honest answers go
        text = _FRACTION.sub(r" \1/\2 ", _TEXT.sub(r" \1 ", text))
    text = _ARROW.sub(" to ", text).replace("\\%", "%").replace("\\&", "&")
    text = _LAYOUT.sub(" ", text).translate(_MINUS_SIGNS)
    return _BLANKS.sub(" ", text).strip().lower()
