r"""Removes what models and programs write around an answer: thinking, tags, fences, JSON, `\boxed`, function calls.

Each step applies only if the result is unambiguous. Tags that hide text or strike it out are unknown tags, and an
answer with an unknown tag is refused; so is an answer with two answer tags, or with a boxed value within another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from finqa_cli.grading.items import BoxedPart, boxed_parts
from finqa_cli.grading.strict_2 import json_form, surface, transcript
from finqa_cli.grading.strict_2.number_words import word_set
from finqa_cli.grading.strict_2.units import units_after

_ANSWER = "answer|final_answer|final-answer|finalanswer|final|result|output|solution|response"
_THOUGHT = re.compile(r"\A\s*<(think|thinking|thought|thoughts|reasoning|scratchpad|analysis)>", re.IGNORECASE)
_CHANNEL = re.compile(r"<\|channel\|>final<\|message\|>")
_TURN = re.compile(
    r"\A(?:<\|[a-z_▁]{1,30}\|>|<s>(?=[^<]*\Z)|<bos>|\[/INST\]|<start_of_turn>model(?=\s)"
    r"|assistant\s*(?:<\|(?:end_header_id|im_sep|end_of_role)\|>|\n))\s*",
    re.IGNORECASE,
)
_END = re.compile(
    r"(?:</s>|<eos>|<pad>|<end_of_turn>|<end_of_text>|<\|/?[a-z_▁]{1,30}\|>|\[/?INST\]|\[EOS\])\s*\Z", re.I
)
_TOOL_CALL = re.compile(r"\A\s*<(tool_call|function_call)>([^<>]*)</\1>\s*\Z", re.IGNORECASE)
_LEFT_OVER = re.compile(
    r"\A\s*(?:</(?:think|thinking|reasoning|thought)>|assistant(?:final|<\|message\|>)(?=\W|[A-Z0-9]))\s*"
)
"""The rest of thinking whose beginning was cut off."""
_ACTION = re.compile(
    r"(?:\A|.*\n)\s{0,4}(?:action|tool|function)[ ]?:[ ]?(?:submit_answer|submit|final_answer|finish|answer)"
    r"(?:\n\s{0,4}(?:action[ _]input|input|arguments|args|answer)[ ]?:[ ]?|(?=[\[(]))(?P<input>.+)\Z",
    re.IGNORECASE | re.DOTALL,
)
_SQUARE = re.compile(rf"\[(/?)({_ANSWER})\]", re.IGNORECASE)
_NESTED = re.compile(rf"\A\s*<({_ANSWER})>\s*<({_ANSWER}|value|text)>([^<>]*)</\2>\s*</\1>\s*\Z", re.IGNORECASE)
"""`<result><value>5</value></result>`."""
_TAG = re.compile(r"<(/?)([a-zA-Z!][\w:-]{0,30})([^<>]{0,400})>")
_FORMATTING = word_set("b strong i em u p code pre br div span sup sub tt big small center")
_LINES = frozenset(["br", "p", "div", "pre"])
_FENCE = re.compile(r"\A\s*(?:```|~~~)[ ]*[a-zA-Z_]{0,12}[ ]*\n(.*?)\n?[ ]*(?:```|~~~)\s*\Z", re.DOTALL)
_FENCES = re.compile(r"(?m)^[ ]*(?:```|~~~)[ ]*[a-zA-Z]{0,12}[ ]*$")
_CALL = re.compile(
    r"\b(?:(?:np|numpy)\.)?(?:float64|float32|float|Decimal|Fraction|str|int(?:64|32)?(?!\([^()]*[./e]))"
    r"\(\s{0,4}(['\"]?)([-+]?[0-9][-+0-9.eE/, ]{0,60})\1\s{0,4}\)"
)
_DELIMITER = re.compile(r"\A\s{0,4}(?:\$\$?|\\[\])]|\*\*)")
_COMMAND_AROUND = re.compile(r"\\(?:text|textbf|mathrm|mathbf|displaystyle)\s?\{\s?\Z")
_SUBMIT = re.compile(
    rf"\A\s*(?:print\()?{transcript.TOOL}(?:\.call)?\s?[(\[]\s*(?:answer\s*[=:]\s*)?(['\"]?)([^'\"()\[\]]{{1,500}})\1"
    r"\s*[)\]]{1,2}\s*;?\s*\Z",
    re.IGNORECASE,
)
_RESIDUE = re.compile(r"(?<=[\w%.)])['\"]?\s{0,4}\}+\s*\Z")
"""The end of a JSON object whose beginning was cut off."""
_JSON_KEY = re.compile(r"[{,][ \n]{0,8}['\"][\w ]{1,40}['\"][ ]{0,4}:|\w\.call\(")
"""A key of an object or a call that could not be parsed: the text before it may be one of its values."""
_BOX = re.compile(r"\\(?:fbox|framebox|boxed)\s{0,8}(?=\{)")
# Directly beside a boxed value these belong to its value: `-\boxed{5}` is -5, and `1/\boxed{5}` is not an answer.
_BESIDE = tuple("-+(~<>≤≥±/^%|&#)*×÷!$€£¥≠?‰'\"")  # noqa: RUF001
_INEQUALITIES = tuple("<>≤≥≠")
_BEHIND = tuple("-+<>≤≥±/^%&*×÷≠?‰")  # noqa: RUF001
_PRINT = re.compile(r"\A\s*print\(([^()\n]{1,80})\)\s*\Z")
_OPEN_BOX = re.compile(r"[^{}\\]*\\boxed\{[^{}\\\n]{1,60}")
"""One boxed value whose last bracket was cut off."""
_MOST_LAYERS = 4


@dataclass(frozen=True, slots=True)
class Wrapped:
    r"""The text that decides, and the texts beside it, which must not contradict it.

    Attributes:
        decision: The content of the tag or of `\boxed`, or the whole answer.
        before: The text before it, which may contain working.
        after: The text after it.
        boxed_count: Number of boxed values in the decision.
    """

    decision: str
    before: str = ""
    after: str = ""
    boxed_count: int = 0


def unwrap(text: str) -> Wrapped | str:
    r"""Removes thinking, end tokens, fences, tags, JSON and `\boxed` from an answer, or returns why it is refused.

    Args:
        text: An answer as `surface.without_hidden` returns it.
    """
    before, after = "", ""
    for _ in range(_MOST_LAYERS):
        text = _without_turns(text)
        if match := _TOOL_CALL.match(text):
            text = match[2].strip()
        if match := _FENCE.match(text):
            text = _PRINT.sub(r"\1", match[1])
        text = transcript.submitted(transcript.printed(text))
        if text.lower().count("action") < 3 and (match := _ACTION.match(text)):
            inner_text = match["input"].strip()
            text = f"answer{inner_text}" if inner_text.startswith(("[", "(")) else inner_text
        if match := _SUBMIT.match(text):
            text = match[2]
        form = json_form.read(_CALL.sub(r"\2", text))
        if isinstance(form, json_form.Refused):
            return form.why
        inner = form if form is not None else _tagged(text)
        if inner is None:
            break
        if isinstance(inner, Wrapped):
            before, after = f"{before}\n{inner.before}", f"{inner.after}\n{after}"
            decision: str | None = inner.decision
        else:
            decision = surface.without_hidden(inner)  # again, because JSON escapes may contain hidden characters
        if decision is None:
            return "There is a hidden character, or a digit of another script."
        if decision == text:
            break
        text = decision
    formatted = _without_formatting(text)
    if formatted is None or _without_formatting(before + after) is None:
        return "There is a tag that is not known, or a tag twice."
    text = _FENCES.sub("\n", _CALL.sub(r"\2", formatted)).strip()
    if _JSON_KEY.search(text):
        return "There is a part of a JSON object, or a call, that cannot be parsed."
    return _boxed(text if "{" in text else _RESIDUE.sub("", text), before, after)


def _without_turns(text: str) -> str:
    if match := _THOUGHT.match(text):
        closing = f"</{match[1]}>"
        place = text.lower().rfind(closing.lower())
        text = text[place + len(closing) :] if place >= 0 else text
    else:
        text = _after_thought(text)
    text = _LEFT_OVER.sub("", _CHANNEL.split(text)[-1])
    for pattern in (_TURN, _END):
        for _ in range(_MOST_LAYERS):
            text = pattern.sub("", text, count=1)
    return text.strip()


def _after_thought(text: str) -> str:
    """Returns the text after the only `</think>`, if `<think>` was part of the prompt; else the text.

    A thought that contains a boxed value or an answer tag is not removed, because it has decided already.
    `analysis...assistantfinal...` is the form of GPT-OSS channels without their special tokens.
    """
    closing = "assistantfinal" if text.startswith("analysis") else "</think>"
    thought, closing, rest = text.partition(closing)
    decides = "<" in thought or closing in rest or "\\boxed" in thought
    return rest if closing and rest.strip() and not decides else text


def _tagged(text: str) -> Wrapped | None:
    """Returns the content of the answer tags; None if there are none, or more than one pair."""
    if nested := _NESTED.match(text):
        return Wrapped(nested[3].strip())
    text = _SQUARE.sub(r"<\1\2>", text)
    tags = [tag for tag in _TAG.finditer(text) if re.fullmatch(_ANSWER, tag[2], re.IGNORECASE)]
    opening = [tag for tag in tags if not tag[1]]
    if any(tag[3] for tag in tags) or len(opening) > 1 or len(tags) - len(opening) > 1 or not tags:
        return None
    start = opening[0] if opening else None
    end = next((tag for tag in tags if tag[1]), None)
    if start and end and (end.start() < start.end() or start[2].lower() != end[2].lower()):
        return None
    inner = text[start.end() if start else 0 : end.start() if end else len(text)]
    return Wrapped(inner.strip(), text[: start.start()] if start else "", text[end.end() :] if end else "")


def _without_formatting(text: str) -> str | None:
    tags = list(_TAG.finditer(text))
    if any(tag[2].lower() not in _FORMATTING or tag[3].strip(" /") for tag in tags) or "<!--" in text:
        return None
    return _TAG.sub(lambda tag: "\n" if tag[2].lower() in _LINES else "**", text)


def _boxed(text: str, before: str, after: str) -> Wrapped | str:
    text = _BOX.sub(r"\\boxed", text)
    found = boxed_parts(text)
    if not found:
        if _OPEN_BOX.fullmatch(text):
            return _boxed(text + "}", before, after)
        return "A boxed value is not closed." if "\\boxed" in text else Wrapped(text, before, after)
    if any("\\boxed" in part.content for part in found) or "\\boxed" in "".join(
        (found[0].before, *(part.after for part in found))
    ):
        return "There is a boxed value within another, or one that is not closed."
    if any(_is_glued(part) for part in found):
        return "There is text directly next to a boxed value."
    if len(found) > 1:
        return Wrapped(
            found[0].before + "".join(f"{part.content} {part.after}" for part in found), before, after, len(found)
        )
    return _single(found[0], before, after)


def _is_glued(part: BoxedPart) -> bool:
    letters = part.after[:1].isalnum() and not units_after(part.after.lower(), 0).named
    return part.before[-1:].isalnum() or letters or part.before.endswith((".", ","))


def _single(part: BoxedPart, before: str, after: str) -> Wrapped | str:
    """Returns one boxed value with signs and symbols beside it and the unit after it, or why it is refused."""
    outside = _COMMAND_AROUND.search(part.before)
    if outside:  # `\text{\boxed{5}}`
        part = BoxedPart(part.before[: outside.start()], part.content, part.after.lstrip().removeprefix("}"))
    head = re.sub(r"(?:\s|\$|\\[\[(]|\*\*)+\Z", "", part.before)
    sign = head[-1] if head.endswith(_BESIDE) else ""
    outer = f"{before}\n{head[: len(head) - len(sign)]}"
    tail = surface.plain(_DELIMITER.sub("", part.after))
    if tail is None:
        return "There is unknown LaTeX next to the boxed value."
    tail = tail if part.after[:1] in (tail[:1], "$", "*") or tail[:1] == "%" else f" {tail}"
    units = units_after(tail.lower(), 0)
    rest = tail[units.end :]
    if rest.lstrip(" \x1f$").startswith(_INEQUALITIES):
        return "There is an inequality next to the boxed value."
    symbol = rest[0] if rest.startswith(_BEHIND) or (sign == "(" and rest[:1] == ")") else ""
    return Wrapped(f"{sign}{part.content} {tail[: units.end]}{symbol}".strip(), outer, f"{rest}\n{after}", 1)
