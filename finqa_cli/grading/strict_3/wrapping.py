r"""Removes what stands around a value: fences, quotes, one JSON field, `\boxed`, and words such as `The answer is`.

Characters that do not show, or that look like others, make a text unreadable.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

from finqa_cli.grading.answers import MalformedReplyError, parse_object
from finqa_cli.grading.items import boxed_parts

MOST_LAYERS = 8
"""Wrappings that are removed, one in another."""

_VARIANTS = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d", "-")
    | dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"')
    | dict.fromkeys("\u2018\u2019\u201a\u02bc", "'")
    | {"\u2028": "\n", "\u2029": "\n", "\r": "\n", "\t": " ", "\u00d7": "x", "\uff05": "%", "\uff04": "$"}
)
_PLAIN_LATEX = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s?\{([^{}\\]*)\}")
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\{([0-9]{1,6})\}\{([0-9]{1,6})\}")
_LATEX_SIGNS = re.compile(r"\\([$%&_])|\\[,!;: ]|\{,\}")
_FENCED = re.compile(r"```[a-z]*\n?([^`]*?)\n?```", re.IGNORECASE)
_TAGGED = re.compile(r"<(answer|final_answer|b|strong|p)>([^<>]*)</\1>", re.IGNORECASE)
_PAIRS = tuple(
    (pair[: len(pair) // 2], pair[len(pair) // 2 :])
    for pair in ("****", "____", '""', "''", "``", "**", "$$", "\\(\\)", "\\[\\]")
)
_END_TOKEN = re.compile(r"(?:(?<!\s)\s*(?:<\|[a-z_]{2,20}\|>|</s>|<eos>|<end_of_turn>))+\Z", re.IGNORECASE)
_CALL = re.compile(r"submit_answer\(\s*(?:answer\s*=\s*)?([^()]*(?:\([^()]*\)[^()]*)?)\)", re.IGNORECASE)
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+|my\s+)?(?:final\s+|correct\s+)?(?:answer|ans|result)"
    r"(?:\s+is\s*[:=]?|\s*[:=])\s*",
    re.IGNORECASE,
)
_GROUPED = re.compile(r"[0-9],[0-9]{3}(?![0-9])")
_YEAR_PAIR = re.compile(r"\(((?:19|20)[0-9]{2}), ?([^()]{1,40})\)")
_YEAR_PAIRS = re.compile(rf"\[?(?:{_YEAR_PAIR.pattern},? ?)+\]?")
_LAST = re.compile(
    r"(?:\A|\n|[.!] )[#*> ]*(?:(?:so|thus|hence|therefore),? )?(?:the |my )?(?:final answer|answer)(?:\*\*)?"
    r"(?: is ?:?|:|\n)(?:\*\*)?",
    re.IGNORECASE,
)
_ANSWER_FIELDS = ("answer", "final_answer", "value", "result")
_OTHER_FIELDS = frozenset({"unit", "units", "reason", "reasoning", "explanation"})
_END_OF_THOUGHT = "</think>"


class UnreadableError(ValueError):
    """An answer is not exactly one value; the message says why."""


def bare(text: str) -> str:
    """Returns an answer without what stands around it. JSON of several values stays JSON.

    Raises:
        UnreadableError: It has characters that do not show, or two answers in one wrapping.
    """
    text = _visible(text)
    if text.count(_END_OF_THOUGHT) == 1:
        text = text.partition(_END_OF_THOUGHT)[2]
    text = re.sub(r"(?<=[0-9]) ?(?=\\[dt]?frac)", " ", text)
    text = _LATEX_FRACTION.sub(r"\1/\2", text)
    text = _LATEX_SIGNS.sub(lambda found: found[1] or ("," if "," in found[0] and found[0][0] == "{" else " "), text)
    for _ in range(MOST_LAYERS):
        inner = _unwrapped(_END_TOKEN.sub("", text.strip()))
        if inner == text:
            return text
        text = inner
    raise UnreadableError("the value is in too many wrappings")


def _visible(text: str) -> str:
    text = unicodedata.normalize("NFC", text).translate(_VARIANTS)
    shown = []
    for character in text:
        category = unicodedata.category(character)
        if category == "Zs":
            character = " "
        elif category[0] == "M" or (category[0] == "C" and character != "\n"):
            raise UnreadableError("there is a character that does not show")
        elif category in ("Nd", "Nl", "No") and not character.isascii():
            raise UnreadableError("there is a digit that is not one of 0 to 9")
        shown.append(character)
    return "".join(shown)


def _unwrapped(text: str) -> str:
    """Returns the text without its outermost wrapping; the same text if there is none."""
    for pattern, group in ((_FENCED, 1), (_TAGGED, 2), (_CALL, 1)):
        if match := pattern.fullmatch(text):
            return match[group]
    for start, end in _PAIRS:
        inner = text[len(start) : -len(end)]
        whole = len(text) > len(start) + len(end) and text.startswith(start) and text.endswith(end)
        if whole and inner.strip() and start not in inner and end not in inner:
            return inner
    if text.startswith(("{", "[{")) and text.endswith(("}", "}]")):
        return _json_field(text[1:-1] if text.startswith("[") else text)
    if "\\boxed" in text:
        return _box(text)
    text = _PLAIN_LATEX.sub(r" \1 ", text)
    if len(last := list(_LAST.finditer(text))) > 1:
        raise UnreadableError("it states an answer twice")
    if last and (rest := text[last[0].end() :].strip()):
        return rest.replace("**", " ") if rest.count("**") % 2 else rest
    if text.count("**") == 2:
        text = text.replace("**", " ").strip()
    return _LEAD.sub("", text, count=1) if _LEAD.match(text) else text


def without_boxes(text: str) -> str:
    r"""Returns a list of values, each of them in a `\boxed{}`, without the boxes."""
    framed = boxed_parts(text)
    return "".join(f"{part.before}{part.content}" for part in framed) + framed[-1].after if len(framed) > 1 else text


def _box(text: str) -> str:
    framed = boxed_parts(text)
    if len(framed) != 1:
        raise UnreadableError("there is not exactly one boxed value")
    before, after = framed[0].before.rstrip("$ "), framed[0].after.lstrip("$ ")  # what is beside it is read with it
    return f"{before}{framed[0].content if before[-1:] in ('-', '') else f' {framed[0].content}'} {after}".strip()


def _json_field(text: str) -> str:
    try:
        fields = parse_object(text)
    except MalformedReplyError as error:
        raise UnreadableError(f"the JSON cannot be read: {error}") from error
    answers = [name for name in fields if name.lower() in _ANSWER_FIELDS]
    if len(answers) == 1 and fields.keys() - answers <= _OTHER_FIELDS:
        unit = _scalar(fields.get("unit", fields.get("units", "")))
        written = _scalar(fields[answers[0]])
        if written is not None and unit is not None:
            return f"{written} {unit}".strip()
    if len(fields) != 1:
        return text
    ((name, value),) = fields.items()
    written = _scalar(value)
    if written is None:
        return json.dumps(value) if isinstance(value, (list, dict)) and value and name in _ANSWER_FIELDS else text
    return f"{name}: {written}"


def _scalar(value: Any) -> str | None:
    """Returns a text or number of JSON as text, None for other values."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    return value if isinstance(value, str) else repr(value)


def json_values(text: str) -> list[tuple[str, str]] | None:
    """Returns label and text of each value of a JSON array or object of texts and numbers; None for another text.

    Raises:
        UnreadableError: It is such JSON, with a value that is neither, or with a repeated key.
    """
    if _YEAR_PAIRS.fullmatch(text):
        return [(match[1], match[2].strip()) for match in _YEAR_PAIR.finditer(text)]
    if text.startswith("{") and text.endswith("}"):
        try:
            pairs = list(parse_object(text).items())
        except MalformedReplyError as error:
            raise UnreadableError(f"the JSON cannot be read: {error}") from error
    elif text.startswith("[") and text.endswith("]"):
        try:
            found = None if ", " in text and _GROUPED.search(text) else json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if found is None:
            return [("", part.strip(" '\"")) for part in re.split(r",(?!\d{3}(?!\d))", text[1:-1])]
        pairs = [("", value) for value in found]
    else:
        return None
    written = [(label, _scalar(value)) for label, value in pairs]
    if any(value is None for _, value in written):
        raise UnreadableError("the JSON has a value that is neither a text nor a number")
    return [(label, value or "") for label, value in written]
