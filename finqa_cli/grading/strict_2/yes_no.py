"""Reads the yes or no that an answer decides on."""

from __future__ import annotations

import re

from finqa_cli.grading.strict_2 import refused_words
from finqa_cli.grading.strict_2.labels import contradicts, covers, is_common, is_foreign, quantities
from finqa_cli.grading.strict_2.notations import in_full
from finqa_cli.grading.strict_2.number_words import DOWN, NUMERAL, UP, word_set
from finqa_cli.grading.strict_2.question import Question
from finqa_cli.grading.strict_2.reasons import (
    asks_direction,
    is_comparison,
    is_false,
    movement,
    movement_is_asked,
    supports,
)
from finqa_cli.grading.strict_2.statement import STRONG, clause_start

_MEANS = {
    **dict.fromkeys(("yes", "yeah", "yep", "yup", "affirmative", "true"), "yes"),
    **dict.fromkeys(("no", "nope", "nah", "no way", "false"), "no"),
}
_DECISION = re.compile(
    r"(?<![\w'-])(yes|no way(?=\s*[-,.!—])|no|yeah|yep|yup|nope|nah|affirmative|true|false)(?![\w'-])"
)
_ALONE = {"y": "yes", "n": "no", "negative": "no", **_MEANS}
_ONLY = re.compile(rf"[\s\x1f\"'(\[*•-]*({'|'.join(_ALONE)})[\s\x1f\"')\].,;:!*]*")
_ABBREVIATION = re.compile(r"\bno\.[ ]?(?:of\b|#|[0-9])")
_TAKEN_BACK = re.compile(
    r"(?<![\w'-])(?:but|however|although|though|except|yet|maybe|unlike|partly|partially|mostly|technically"
    r"|(?:in|on|to some|to an|to a certain|to a degree|more) (?:part|balance|extent|less)|somewhat|more or less"
    r"|[0-9]+ ?% (?:sure|certain|confident|likely|chance|probability|yes|no))(?![\w'])"
)
_NOT = re.compile(
    r"(?<![\w'-])(?:not|non|nein|nicht|never|\w+n't|false|untrue|wrong|incorrect|hardly|deny|denied)(?![\w'])"
)
_GOES_ON = re.compile(r"(?:it|they|there|the|this|that|we)\b")
_NOT_FAILED = re.compile(r"(?:not|never|n't) (?:fail\w*|untrue|false|wrong|miss\w*|lack\w*|avoid\w*)")


def yes_or_no(text: str, question: Question) -> str | None:
    """Returns `yes` or `no` as a text in lower case decides, or None.

    The word must begin or end a clause; `no data` and `with no exception` are not decisions. All decisions in the text
    must agree, none may be negated, and the explanation must not contradict them.
    """
    if only := _ONLY.fullmatch(text):
        return _ALONE[only[1]]
    text = _AND_SHARE.sub(r"\1, ", text)
    if "quarter" in question.words:
        text = _ALL_QUARTERS.sub("every quarter", text)
        text = _ONE_QUARTER.sub("quarter", text) if text.startswith("no") else text
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
    if not found:
        return _restated(text, question)
    meanings = {_MEANS[match[1]] for match in found}
    if len(meanings) != 1 or len(found) > 2:
        return None
    first = found[0]
    start = clause_start(text, first.start())
    if _NOT.search(text, start, first.start()) or not _stands_alone(text, first, start):
        return None
    meaning = meanings.pop()
    if question.known and _is_of_another(text, first, start, meaning, question):
        return None
    if (moved := movement(text, question)) and (moved > 0) != (meaning == "yes"):
        return None
    rest = text[first.end() :]
    if is_false(text):
        return None
    if _is_of_other_years(text, question):
        return None
    if agrees := supports(f"{text[: first.start()]}. {rest}", question):
        return meaning if (agrees > 0) == (meaning == "yes") else None
    if meaning == "yes" and (_NOT.search(rest) or _has_none(rest, question)):
        return None
    if meaning == "no" and not asks_direction(question) and _affirms(rest, question):
        return None
    if meaning == "no" and _EVERY.search(question.text) and _EVERY.search(rest) and not _NOT.search(rest):
        return None
    return None if _contradicts(rest, meaning, question) else meaning


_AND_SHARE = re.compile(
    r"([$][0-9][0-9,.]{0,20}(?: million| billion| thousand)?|[0-9] (?:million|billion|thousand)),? or "
    r"(?:about |approximately )?(?=[0-9.]{1,9} ?(?:%|percent\b))"
)
"""An `or` between an amount and its share of a total. Between two shares, `or` joins alternatives."""
_ALL_QUARTERS = re.compile(
    r"\b(?:q1, q2, q3,? (?:and|&) q4|(?:the )?first, second, third,? and fourth quarters?|all (?:four|4) quarters)\b"
)


_ONE_QUARTER = re.compile(r"\bq[1-4]\b")
_EVERY = re.compile(r"\b(?:every|each|all)\b")


def _has_none(reason: str, question: Question) -> bool:
    """Returns whether a reason denies what the question asks about: `no dividend was declared`."""
    if _ZERO_AMOUNT.search(reason) and not asks_direction(question) and not _ZERO_AMOUNT.search(question.text):
        return True
    nouns = (match[1] for match in _NO_WORD.finditer(reason))
    return "no" not in question.words and any(len(noun) > 3 and noun in question.words for noun in nouns)


def _affirms(reason: str, question: Question) -> bool:
    """Returns whether a reason affirms the question: `4.6 million shares were repurchased in 2020`."""
    years = set(_YEAR.findall(reason))
    is_limited = _NOT.search(reason) or _LIMITS.search(reason) or not years <= question.years
    return not is_limited and covers(_WORDS.findall(reason), _subject(question))


_LIMITS = re.compile(
    r"\b(?:no|none|only|last|nothing|zero|without|neither|instead|until|before|after|below|less|under|rather|another|other)\b"
)
_YEAR = re.compile(r"\b(?:19|20)[0-9]{2}\b")
_ZERO_AMOUNT = re.compile(r"(?<![\w.,])[$]0(?:\.0{1,3})?(?![\w.,]*[0-9])")
_NO_WORD = re.compile(r"\b(?:no|zero) (?:[a-z]+ )??([a-z]+)\b")


def _is_of_other_years(text: str, question: Question) -> bool:
    """Returns whether a text is only about other years than those of a question that does not compare years."""
    said = set(_FOR_YEAR.findall(text))
    compares = movement_is_asked(question) or _COMPARES_YEARS.search(text)
    return bool(said and question.years and not compares and not said & question.years)


_FOR_YEAR = re.compile(r"\b(?:in|for|during|of) (?:fy ?|fiscal (?:year )?)?((?:19|20)[0-9]{2})\b")
_COMPARES_YEARS = re.compile(
    r"\b(?:from|than|versus|vs|compared|prior|previous|since|until|due|by|matur\w+|expir\w+)\b"
)


def _is_of_another(text: str, decision: re.Match[str], start: int, meaning: str, question: Question) -> bool:
    """Returns whether the decision is about another measure or other years, or a clause denies it."""
    around = _CLAUSE_END.split(f"{text[start : decision.start()]} {text[decision.end() :].lstrip(' ,:;.—-*')}")
    if any(contradicts(clause, question.text) for clause in around[:1]):
        return True
    said = set(_IN_YEAR.findall(around[0]))
    if said and question.years and not said & question.years:
        return True
    named = quantities(_REASON.split(around[0])[0])
    if named and question.quantities and not named & question.quantities and supports(around[0], question):
        return True
    denied = (part for part in around if _NOT.search(part) and not supports(part, question))
    if meaning == "yes" and any(covers(_WORDS.findall(part), _subject(question)) for part in denied):
        return True
    return len(question.years) == 2 and any(
        not {match[1], match[2]} <= question.years for match in _FROM_YEAR.finditer(text)
    )


def _subject(question: Question) -> list[str]:
    """Returns the words of a question without its instructions and without words of a direction."""
    text = question.text.partition("?")[0]
    return [
        word for word in _WORDS.findall(text) if word not in UP | DOWN and word not in ("improve", "grow", "exceed")
    ]


_WORDS = re.compile(r"[a-z][a-z'&-]*")
_CLAUSE_END = re.compile(r"[.;!](?=\s|\Z)|\n|,\s|\b(?:but|while|whereas|though)\b")
_REASON = re.compile(r"\b(?:because|since|as|given|with)\b")
_IN_YEAR = re.compile(r"\b(?:in|for|during) (?:fy ?|fiscal (?:year )?)?((?:19|20)[0-9]{2})\b")
_FROM_YEAR = re.compile(r"\bfrom (?:fy ?|fiscal )?((?:19|20)[0-9]{2}) to (?:fy ?|fiscal )?((?:19|20)[0-9]{2})\b")


def _restated(text: str, question: Question) -> str | None:
    """Returns yes or no for a sentence that affirms or denies the question in its own words; else None."""
    text = _DATE_COMMA.sub(" ", in_full(text.strip(" .*!\n\x1f"), question.text))
    if short := _SHORT.fullmatch(text):
        return "no" if short[1] else "yes"
    measured, moved = supports(text, question), movement(text, question)
    text = _FACT.sub(" ", text).strip() if measured else text
    text = _MOVES.sub(_years_of_move, text) if moved else text
    words = [_PRESENT.get(word, word) for word in re.findall(r"[a-z][a-z'&-]*", text)]
    years = set(re.findall(r"[0-9][0-9,.]*", text))
    if not question.known or years - set(
        re.findall(r"[0-9][0-9,.]*", _DATE_COMMA.sub(" ", question.text.partition("?")[0]))
    ):
        return None
    if contradicts(text, question.text) or set(_SCALES.findall(text)) - set(_SCALES.findall(question.text)):
        return None
    own = [word for word in words if not _PLAIN_NOT.fullmatch(word)]
    asked = _WORDS.findall(question.text.partition("?")[0])
    if (not covers(own, asked) and not _PRONOUN.match(text)) or any(
        word not in _AUXILIARIES and _foreign(word, question) and not (measured and is_comparison(word)) for word in own
    ):
        return None
    is_short = _PRONOUN.match(text) and asks_direction(question)
    if not is_short and any(
        is_foreign([one], own, related=False) for one in asked if one not in UP | DOWN | _AUXILIARIES
    ):
        return None
    if (
        re.search(r"[;!?\n]|[.,](?![0-9])", text.replace("selling,", "selling").replace("property,", "property"))
        or len(_NOT.findall(text)) + len(_NO_NOUN.findall(text)) > 1
    ):
        return None
    agrees = supports(text, question)
    if (measured and measured != agrees) or (moved and moved != agrees):
        return None
    if not agrees and not asks_direction(question):
        agrees = -1 if _NOT.search(text) or _NO_NOUN.search(text) else 1
    return {1: "yes", -1: "no"}.get(agrees)


_AMOUNT = rf"[$]?{NUMERAL}(?: ?%| percent| million| billion)?"
_FACT = re.compile(
    rf"(?:^(?:with|at|since|as) [^,;.]{{0,40}}?)?\b(?:was|is|of|at|stood at|came to) {_AMOUNT},? "
    r"(?:and |so |which |thus |therefore |hence )*(?=it |they |did |does |is |was |that )"
    rf"|^(?:with|at) [^,;.]{{0,40}}?{_AMOUNT}, "
)
"""A measured value before its conclusion: `was 21.8%, so it did not exceed 25%`."""
_PRONOUN = re.compile(r"(?:it|they) ")
_MOVES = re.compile(
    rf" from (?!(?:19|20)[0-9]{{2}} ){_AMOUNT}( in (?:19|20)[0-9]{{2}})? to {_AMOUNT}( in (?:19|20)[0-9]{{2}})?"
)


def _years_of_move(move: re.Match[str]) -> str:
    return f"{move[1] or ''}{move[2] or ''}"


_DATE_COMMA = re.compile(r"(?<=[a-z] [0-9]), (?=[0-9]{4})|(?<=[a-z] [0-9]{2}), (?=[0-9]{4})")
_SCALES = re.compile(r"\b(?:thousand|million|billion|trillion)\b|%")


def _foreign(word: str, question: Question) -> bool:
    return word not in UP | DOWN and is_foreign([word], question.words, related=False)


_NO_NOUN = re.compile(r"\bno (?=[a-z])")
_PLAIN_NOT = re.compile(r"no|not|never|\w+n't")
_AUXILIARIES = word_set(
    "the a an of in at on for to by was is were are did do does has had have it its company that than any there"
)
_PRESENT = {
    "paid": "pay",
    "bought": "buy",
    "sold": "sell",
    "met": "meet",
    "made": "make",
    "held": "hold",
    "lost": "lose",
}
_SHORT = re.compile(r"(?:it|they|the company|that|this) (?:did|was|is|does|were|had|has|do)(?:( not|n't)|)(?: indeed)?")


def _contradicts(reason: str, meaning: str, question: Question) -> bool:
    """Returns whether the reason contradicts the decision: `yes, it fell`, if the question is whether it rose."""
    does = _DOES.match(reason)
    if meaning == "no" and does and not _NOT.search(reason) and not asks_direction(question):
        if is_common(does[1]) and does[1] not in question.words:
            return False  # `no, it reported a loss`
        return not _foreign(does[1], question) or not is_foreign([does[1]], question.words)
    if meaning == "no" and _THERE_ARE.match(reason) and not _NOT.search(reason) and not asks_direction(question):
        return True
    words = set(re.findall(r"[a-z]+", reason))
    rises, falls = bool(words & UP), bool(words & DOWN)
    if not question.direction or rises == falls or _NOT.search(reason):
        return False
    return (question.direction > 0) != (rises if meaning == "yes" else falls)


_THERE_ARE = re.compile(r"[\W_]*there (?:was|were|is|are) (?!no\b|none\b|only\b)")
_DOES = re.compile(r"[\W_]*(?:but )?(?:it|they|the company|we) (?!was\b|is\b|had\b|has\b|did\b|only\b)([a-z]+)\b")


def _is_determiner(text: str, match: re.Match[str]) -> bool:
    """Returns whether `no` directly precedes a word that it may belong to."""
    rest = text[match.end() :]
    return match[1] == "no" and bool(re.match(r"[ ]+[^\W\d_]", rest)) and not _GOES_ON.match(rest.lstrip(" "))


def _stands_alone(text: str, match: re.Match[str], start: int) -> bool:
    """Returns whether a decision ends its clause, and begins it or follows `answer is` or a similar word."""
    before = text[start : match.start()].strip(" \"'(*:>→•-\n\x1f")
    after = text[match.end() :].lstrip(" \"')*")
    begins = not before
    ends = not after or after[0] in ".,;:!\n\x1f-—(" or bool(_GOES_ON.match(after))
    announced = any(found.end() >= match.start() - 3 for found in STRONG.finditer(text, 0, match.start()))
    return ends and (
        begins
        or announced
        or bool(re.search(r"(?:\bso|\bis|\bhence|\bthus|\btherefore|[,:→])\W*\Z", text[: match.start()]))
    )
