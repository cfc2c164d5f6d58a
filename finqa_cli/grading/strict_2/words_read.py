"""The word that an answer decides on: yes or no, or a name."""

from __future__ import annotations

import re

from finqa_cli.grading.strict_2 import refused_words
from finqa_cli.grading.strict_2.direction import DOWN, UP
from finqa_cli.grading.strict_2.question import Question
from finqa_cli.grading.strict_2.statement import STRONG, clause_start
from finqa_cli.grading.strict_2.wordlists import word_set

_DECISION = re.compile(r"(?<![\w'-])(yes|no|yeah|yep|nope|true|false)(?![\w'-])")
_MEANS = {"yes": "yes", "yeah": "yes", "yep": "yes", "true": "yes", "no": "no", "nope": "no", "false": "no"}
_ONLY = re.compile(r"[\s\x1f\"'(\[*•-]*(yes|no|true|false|y|n|yeah|yep|nope)[\s\x1f\"')\].,;:!*]*")
_ABBREVIATION = re.compile(r"\bno\.[ ]?(?:of\b|#|[0-9])")
_TAKEN_BACK = re.compile(
    r"(?<![\w'-])(?:but|however|although|though|except|yet|maybe|partly|mostly|technically)(?![\w'])"
)
_NOT = re.compile(
    r"(?<![\w'-])(?:not|non|nein|nicht|never|\w+n't|false|untrue|wrong|incorrect|hardly|deny|denied)(?![\w'])"
)
_GOES_ON = re.compile(r"(?:it|they|there|the|this|that|we)\b")
_NOT_FAILED = re.compile(r"(?:not|never|n't) (?:fail\w*|untrue|false|wrong|miss\w*|lack\w*|avoid\w*)")
_SUFFIXES = word_set(
    "inc inc. incorporated corp corp. corporation co co. company ltd ltd. limited plc llc lp sa ag nv se "
    "gmbh group holdings holding"
)
_NOUNS = word_set("segment segments division region business unit area category market company group the")
_STARTERS = word_set(
    "the it based in answer final result for according therefore so my a of thus hence that this as by at "
    "among on looking company segment"
)
_OTHERS = re.compile(
    r"(?<![\w'-])(?:and|than|compare\w*|versus|vs|like|similar\w*|such|rival\w*|competitor\w*|subsidiar\w+|unlike|beat|beats|between|"
    r"both|except|outside|excluding|former|parent|follow\w*|behind|after|before|second|los(?:er|es|t)|less|fewer|worse|worst|lower|lowest|smaller|smallest)(?![\w'])"
)
_TICKER = re.compile(r"[ ]?\((?:(?:NASDAQ|NYSE)[:,] ?)?[A-Z]{1,5}\)")
_TOKEN = re.compile(r"[^\W_]+(?:['.][^\W_]+)*|&|%")


def yes_or_no(text: str, question: Question) -> str | None:
    """`yes` or `no` as a text in lower case decides, or None.

    It stands at the beginning or end of a clause; `no data` and `with no exception` are no decisions. Every decision in
    the text must be the same, none may be negated, and the explanation of a yes may not deny it.
    """
    if only := _ONLY.fullmatch(text):
        word = only[1]
        return {"y": "yes", "n": "no"}.get(word) or _MEANS[word]
    if (
        refused_words.undecided(text, question.words)
        or _TAKEN_BACK.search(text)
        or _ABBREVIATION.search(text)
        or _NOT_FAILED.search(text)
    ):
        return None
    found = [
        match
        for match in _DECISION.finditer(text)
        if match[1] not in ("true", "false") and not _is_determiner(text, match)
    ]
    meanings = {_MEANS[match[1]] for match in found}
    if len(meanings) != 1 or len(found) > 2:
        return None
    first = found[0]
    start = clause_start(text, first.start())
    if _NOT.search(text, start, first.start()) or not _stands_alone(text, first, start):
        return None
    meaning = meanings.pop()
    rest = text[first.end() :]
    if meaning == "yes" and _NOT.search(rest):
        return None
    return None if _contradicts(rest, meaning, question) else meaning


def _contradicts(reason: str, meaning: str, question: Question) -> bool:
    """The reason goes the other way: `yes, it fell` to a question whether it rose."""
    words = set(re.findall(r"[a-z]+", reason))
    rises, falls = bool(words & UP), bool(words & DOWN)
    if not question.direction or rises == falls or _NOT.search(reason):
        return False
    return (question.direction > 0) != (rises if meaning == "yes" else falls)


def _is_determiner(text: str, match: re.Match[str]) -> bool:
    """`no` right before a word."""
    return match[1] == "no" and bool(re.match(r"[ ]+[^\W\d_]", text[match.end() :]))


def _stands_alone(text: str, match: re.Match[str], start: int) -> bool:
    """It begins its clause, ends it, or follows `answer is`."""
    before = text[start : match.start()].strip(" \"'(*:>→•-\n\x1f")
    after = text[match.end() :].lstrip(" \"')*")
    begins = not before
    ends = not after or after[0] in ".,;:!\n\x1f-—(" or (match[1] == "yes" and bool(_GOES_ON.match(after)))
    announced = any(found.end() >= match.start() - 3 for found in STRONG.finditer(text, 0, match.start()))
    return ends and (
        begins
        or announced
        or bool(re.search(r"(?:\bso|\bis|\bhence|\bthus|\btherefore|[,:→])\W*\Z", text[: match.start()]))
    )


def is_name(text: str, name: str) -> bool:
    """The text decides on this name: it is the name, or a sentence about the name and no other.

    Case, quotes, `the`, company suffixes and nouns such as `segment` do not count.

    Args:
        text: The answer in its own case.
        name: The name that is expected.
    """
    text = _TICKER.sub("", text, count=1)
    wanted = _core(_tokens(name))
    given = _tokens(text)
    if not wanted or ("?" in text and "?" not in name):
        return False
    if _core(given) == wanted:
        return True
    lowered = " ".join(text.lower().split())
    announced = list(STRONG.finditer(lowered))
    if announced and _core(_tokens(lowered[announced[-1].end() :])) == wanted:
        return not (
            refused_words.undecided(lowered)
            or refused_words.REJECTED.search(lowered[clause_start(lowered, announced[-1].start()) :])
        )
    return _is_sentence_about(given, text, wanted)


def _is_sentence_about(given: list[str], text: str, wanted: list[str]) -> bool:
    places = [place for place in range(len(given)) if given[place : place + len(wanted)] == wanted]
    if len(places) != 1 or len(given) > 40:
        return False
    place = places[0]
    written = _TOKEN.findall(text)
    rest = [*given[:place], *given[place + len(wanted) :]]
    others = [*written[:place], *written[place + len(wanted) :]]
    said = " ".join(rest)
    if refused_words.undecided(text.lower()) or refused_words.REJECTED.search(said) or _OTHERS.search(said):
        return False
    if f"{wanted[-1]}'s" in text.lower() or (place and given[0] not in _STARTERS):
        return False
    before, after = _around(text.lower(), wanted)
    if before not in _LEADS or after not in _FOLLOWS:
        return False
    names = [
        word for word in others[1 if place else 0 :] if word[:1].isupper() and word.lower() not in _SUFFIXES | _NOUNS
    ]
    return not names and not refused_words.NO_AS_DETERMINER.search(said)


def _around(text: str, wanted: list[str]) -> tuple[str, str]:
    """The words right before and after a name; nothing where it begins or ends its clause."""
    found = re.search(r"\W+".join(map(re.escape, wanted)).replace("and", "(?:and|&)"), text)
    if found is None:
        return "?", "?"
    if text[found.end() :][:1] == "-" or text[: found.start() + 1].rstrip(" \"'*(").endswith("-"):
        return "?", "?"
    before = re.search(r"([^\W_]+)[ \"'*]*\Z", text[: found.start()])
    after = re.match(
        r"[ \"'*]*(?:,? ?(?:inc|corp|ltd|plc|co|group|company)\b\.?)?[ \"'*]*([^\W_]+)?", text[found.end() :]
    )
    return before[1] if before else "", (after[1] or "") if after else ""


_LEADS = frozenset(
    (
        "",
        *[
            "is",
            "was",
            "are",
            "were",
            "the",
            "by",
            "at",
            "for",
            "answer",
            "company",
            "segment",
            "in",
            "of",
            "from",
            "be",
            "that",
        ],
    )
)
_FOLLOWS = frozenset(
    (
        "",
        *[
            "had",
            "has",
            "have",
            "is",
            "was",
            "were",
            "are",
            "reported",
            "recorded",
            "posted",
            "paid",
            "earned",
            "generated",
            "made",
            "with",
            "which",
            "achieved",
            "showed",
            "shows",
            "reports",
            "in",
            "at",
            "by",
            "segment",
            "region",
            "division",
            "company",
            "held",
            "holds",
            "ranks",
            "ranked",
            "came",
            "led",
            "leads",
        ],
    )
)


def _tokens(text: str) -> list[str]:
    return ["and" if word == "&" else word.lower().rstrip(".") for word in _TOKEN.findall(text)]


def _core(words: list[str]) -> list[str]:
    """A name without `the`, suffixes of companies and nouns such as `segment`; never without everything."""
    kept = list(words)
    while len(kept) > 1 and kept[-1] in _SUFFIXES | _NOUNS:
        kept.pop()
    while len(kept) > 1 and kept[0] == "the":
        kept = kept[1:]
    return kept
