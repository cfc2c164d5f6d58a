"""Removes text around an answer: a repetition of the question, code that printed the answer, polite endings.

Programs and models write these forms, and each contains one text that decides. Text of other forms is unchanged.
"""

from __future__ import annotations

import re

from finqa_cli.grading.strict_2.question import LONGEST
from finqa_cli.grading.strict_2.refused_words import REJECTED, undecided

_LABEL = re.compile(r"\A\W{0,4}(?:question|q)\W{1,4}", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")
_SHORTEST_ECHO = 3
"""Smallest number of words of a repeated question. A shorter question in the answer is a doubt."""

_POLITE = re.compile(
    r"(?:(?<=[.!\n}$*])|\A)[ \n]{0,4}(?:i )?hope (?:this|that|it) helps[^.!?\n]{0,40}[.!]*\Z"
    r"|(?<=[.!\n])[ \n]{0,4}(?:please )?(?:let me know|feel free to (?:ask|reach out)) (?:if|"
    r"should) [^.!?\n]{0,120}[.!]*\Z",
    re.IGNORECASE,
)
_MINERVA = re.compile(r"(the final answer is [^\n]{1,200}\.)\s*i hope it is correct\.?\s*\Z", re.IGNORECASE)

_MOST_LINES = 40
_PRINTS = re.compile(r"(?:>>> ?)?print\([^\n]{0,200}\)\s*\Z|>>> ?[^\n]{1,200}\Z")
_CODE = re.compile(
    r"(?:>>> ?|\.\.\. )?(?:[a-z_]\w{0,40} ?[-+*/]?= ?[^=#\n][^#\n]{0,200}|print\([^#\n]{0,200}\))|>>> ?[^#\n]{1,200}",
    re.I,
)
_INDEXED = re.compile(r"[ ]*([0-9]{1,2})[ ]{2,}(\S[^\n]*)")
_HEAD = re.compile(r"[ ]*[^\W\d][^\n,:|]{0,120}")
_SERIES_END = re.compile(r"(?:Name: [^\n]{1,60}, )?dtype: [a-z0-9]{2,12}")


def without_echo(text: str, question: str) -> str:
    """Removes a repetition of the question, all of whose words are in the question, from the beginning of an answer."""
    end = text.find("?", 0, LONGEST)
    if end < 0 or not question or len(question) > LONGEST:
        return text
    asked = _words(question)
    label = _LABEL.match(text)
    repeated = _words(text[label.end() if label else 0 : end])
    enough = len(repeated) >= max(_SHORTEST_ECHO, len(asked) // 2)
    rest = text[end + 1 :].strip(" \n\"'*")
    return rest if enough and rest and set(repeated) <= set(asked) else text


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def without_endings(text: str) -> str:
    """Removes `I hope this helps!`, high confidence, thanks, and the ending of prompts for mathematics (Minerva)."""
    text = _SURE.sub("", _POLITE.sub("", _MINERVA.sub(r"\1", text)))
    return _THANKS.sub("", _TO_SUBMIT.sub("", text)).strip()


_SURE = re.compile(
    r"(?:[ \n]{0,4}\(|\n[ ]{0,4}|(?<=[.!;,])[ ]{1,4})(?:my )?confidence(?: level)?[ ]?[:=]?[ ]?"
    r"(?:very high|high|certain|9[0-9]%|100%|0\.9[0-9]?|1\.0)\)?\.?\s*\Z"
    r"|(?<=[.!])[ \n]{1,4}i am (?:very |highly |fully )?(?:confident|certain|sure) (?:in|of|about) (?:this|the)"
    r"(?: (?:figure|answer|value|number|result))?(?: (?:because|as|since) [^.!?\n0-9]{1,80})?[.!]?\s*\Z",
    re.IGNORECASE,
)
_TO_SUBMIT = re.compile(
    r"(?<=[.!\n])[ \n]{1,4}(?:so )?(?:that's|that is|this is) what (?:i|we) (?:need to|will|should|have to) "
    r"(?:submit|report|answer|give)[.!]?\s*\Z",
    re.IGNORECASE,
)
_THANKS = re.compile(r"\A\s*(?:thanks?|thank you)(?: you)? for (?:the|your) question[.!][ \n]+", re.IGNORECASE)
_FOOTNOTE = re.compile(
    r"\A([^\n]{1,300}?)[ ]?(\[1\]|\*|¹|†|\(1\)|\^1)[.]?[ ]{0,4}\n{1,4}[ ]{0,4}"
    r"(\[1\]|\*|¹|†|\(1\)|\^1)[:.]?[ ]*([^\n]{1,300})\Z"
)
_SOURCE_NUMBERS = re.compile(
    r"\b(?:note|page|p\.|item|table|exhibit|section|line|row|step)s?[ ]?[0-9]{1,3}\b|\b(?:19|20)[0-9]{2}\b"
    r"|\b(?:january|february|march|april|may|june|july|august|september|october|november|december) [0-9]{1,2}\b",
    re.IGNORECASE,
)


def without_footnote(text: str) -> str:
    """Returns the line of `1,108 [1]` without mark and note, if the note names a source and no value; else the text."""
    match = _FOOTNOTE.match(text.strip())
    if match is None or match[2] != match[3]:
        return text
    note = match[4].lower()
    has_value = any(character.isdigit() for character in _SOURCE_NUMBERS.sub("", note))
    return text if has_value or undecided(note) or REJECTED.search(note) else match[1]


_RULE = re.compile(r"\n[ ]*(?:-{3,}|_{3,}|\*{3,})[ ]*\n")


def after_rule(text: str) -> str:
    """Returns the text below the last rule `---`, if the text above has no number or several; else the text."""
    rules = list(_RULE.finditer(text))
    if not rules:
        return text
    above, below = text[: rules[-1].start()], text[rules[-1].end() :].strip()
    count = len(_NUMERALS.findall(above))
    return below if count != 1 and below and "|" not in below and not undecided(above.lower()) else text


def restated(text: str) -> str:
    """Returns the text below a bare value or a table that states the same value; other texts unchanged."""
    lines = [line for line in text.strip().split("\n") if line.strip()]
    if not 2 <= len(lines) <= _MOST_LINES:
        return text
    first, rest = lines[0].strip(" *$"), "\n".join(lines[1:])
    if _BARE.fullmatch(first) and "|" not in rest and first in rest:
        others = _NUMERALS.findall(_SOURCE_NUMBERS.sub("", rest))
        return rest if len(others) == 1 and others[0].rstrip(".,") in first else text
    rows = [line for line in lines if line.count("|") > 1]
    below = lines[-1]
    numbers = [one.rstrip(".,") for one in _NUMERALS.findall(below)]
    if len(rows) == len(lines) - 1 > 1 and len(numbers) == 1 and numbers[0] in "".join(rows):
        return below if "|" not in below else text
    return text


_BARE = re.compile(r"-?[$€£]?[0-9][0-9.,]*[ ]?%?")
_NUMERALS = re.compile(r"(?<![\w.,])[0-9][0-9.,]*")


def printed(text: str) -> str:
    """Returns the output of a short program, or a printed data frame without its index; other texts unchanged."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not 2 <= len(lines) <= _MOST_LINES:
        return text
    if _PRINTS.match(lines[-2]) and all(_CODE.fullmatch(line) for line in lines[:-1]):
        return lines[-1]
    if _SERIES_END.fullmatch(lines[-1].strip()):
        lines = ["value", *lines[:-1]]
    rows = [_INDEXED.fullmatch(line) for line in lines[1:]]
    if not _HEAD.fullmatch(lines[0]):
        return text
    values = [row[2] for place, row in enumerate(rows) if row and int(row[1]) == place]
    return "\n".join([lines[0].strip(), *values]) if len(values) == len(rows) else text


# Unparsed calls of a tool that submits: of Llama (`<function=...>`), Mistral (`[TOOL_CALLS]`), Qwen and GLM
# (`<tool_call>`), DeepSeek, GPT-OSS (`commentary to=functions...`) and Phi (`functools`). The answer is one call only.
TOOL = r"(?:functions\.|default_api\.)?(?:submit_answer|submit|final_answer|finish|answer)"
"""Pattern of the names of tools that submit an answer."""
_ARGUMENTS = r"(?P<input>\{[^<>]{1,2000}\})"
_FORMS = tuple(
    re.compile(form, re.DOTALL | re.IGNORECASE)
    for form in (
        rf"\[TOOL_CALLS\]\s*(?:{TOOL}\s*(?:\[CALL_ID\]\w{{1,30}}\s*)?(?:\[ARGS\])?\s*(?=\{{))?"
        r"(?P<input>\[\s*\{[^<>]{1,2000}\}\s*\]|\{[^<>]{1,2000}\})",
        rf"(?:<tool_call>\s*)?<function={TOOL}>\s*{_ARGUMENTS}\s*(?:</function>\s*(?:</tool_call>)?)?",
        rf"(?:<tool_call>\s*)?<function={TOOL}>\s*<parameter=answer>\s*(?P<input>[^<>]{{1,2000}})</parameter>\s*"
        r"</function>\s*(?:</tool_call>)?",
        rf"<tool_call>\s*{TOOL}\s*<arg_key>answer</arg_key>\s*<arg_value>(?P<input>[^<>]{{1,2000}})</arg_value>\s*"
        r"</tool_call>",
        rf"<tool_call>\s*{_ARGUMENTS}",
        rf"{TOOL}\s?\(\s*{_ARGUMENTS}\s*\)",
        r"functools\s*(?P<input>\[\s*\{[^<>]{1,2000}\}\s*\])",
        rf"(?:<\|start\|>)?(?:assistant)?(?:<\|channel\|>)?commentary\s?to={TOOL}\s*(?:<\|constrain\|>)?\s*(?:json)?\s*"
        rf"<\|message\|>\s*{_ARGUMENTS}",
        rf"(?:<\|tool▁calls▁begin\|>)?(?:<\|tool▁call▁begin\|>)?(?:function<\|tool▁sep\|>)?{TOOL}(?:<\|tool▁sep\|>)?\s*"
        rf"(?:```json\s*)?{_ARGUMENTS}\s*(?:```)?\s*(?:<\|tool▁call▁end\|>)?\s*(?:<\|tool▁calls▁end\|>)?",
    )
)
_CALL_OF = re.compile(rf"{TOOL}\Z", re.IGNORECASE)


def submitted(text: str) -> str:
    """Returns the arguments of a text that is one unparsed call of a submitting tool; other texts unchanged."""
    stripped = text.strip()
    for form in _FORMS:
        if match := form.fullmatch(stripped):
            return match["input"].strip()
    return text


def submits(name: object) -> bool:
    """Returns whether a tool of this name submits an answer."""
    return isinstance(name, str) and _CALL_OF.match(name.strip().replace(" ", "_")) is not None
