"""What stands around an answer because of how it was made: the question again, code that printed it, polite endings.

Each form is one that programs and models write, and leaves one text that decides. What does not fit is unchanged.
"""

from __future__ import annotations

import re

from finqa_cli.grading.strict_2.question import LONGEST

_LABEL = re.compile(r"\A\W{0,4}(?:question|q)\W{1,4}", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")
_SHORTEST_ECHO = 3
"""Words. A shorter question of the answer's own is a doubt and no repetition."""

_POLITE = re.compile(
    r"(?:(?<=[.!\n}$*])|\A)[ \n]*(?:i )?hope (?:this|that|it) helps[^.!?\n]{0,40}[.!]*\Z"
    r"|(?<=[.!\n])[ \n]*(?:please )?(?:let me know|feel free to (?:ask|reach out)) (?:if|"
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
    """Takes the question from the beginning of an answer that repeats it: all its words are the question's."""
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
    """Takes out `I hope this helps!`, `Let me know if ...` and the ending that prompts for mathematics teach."""
    return _POLITE.sub("", _MINERVA.sub(r"\1", text)).strip()


def printed(text: str) -> str:
    """The output of a short program, or of a data frame without its index; other texts as they are."""
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
