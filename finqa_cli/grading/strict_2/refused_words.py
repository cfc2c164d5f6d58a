"""Words that show that an answer is not a decision: hedges, negations, alternatives, bounds, text for the judge.

Every list is wider than necessary. An honest answer that contains one of these words by chance is refused, which costs
one reward; but a reward for a hedge teaches a policy to hedge.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from finqa_cli.grading.strict_2.number_words import word_set


def _words(*lines: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w'-])(?:{'|'.join(lines)})(?![\w'])")


UNDECIDED = _words(
    # not sure
    r"maybe|perhaps|possibl[ey]|probabl[ey]|presumabl[ey]|unlikely|unsure",
    r"not (?:too |so |quite |entirely |fully )?(?:sure|certain|clear)|guess\w*|might|may (?:be|have|well)|seems?|"
    r"apparently",
    r"suppos\w+|(?:i|we) (?:don't |do not )?(?:think|believe|suspect|feel|hope|know)|think so|hopefully|conceivabl[ey]",
    r"at the (?:earliest|latest|outside|very least)|who knows|no idea|no clue|sort of|kind of|ballpark|"
    r"thereabouts|give or take|or so|unverified|unchecked",
    r"plus or minus|something|somewhere|somehow|tentative\w*|unclear|debatable|arguabl[ey]|ambiguous|questionable",
    r"let's say|let us say|(?:say|see)(?= [-$~]*[0-9.])|wager|bet|betting|gamble|sic|etc|and so (?:on|forth)|"
    r"speculat\w+|ish|sure\?|educated|stand-in|stab|close to|near(?:ing)?|approaching|on the order of|if anything",
    r"in the (?:region|neighbou?rhood|vicinity|range|area) of|best (?:estimate|bet|effort|approximation)|wild",
    # conditions and alternatives
    r"or|either|neither|nor|if|unless|otherwise|whether|alternatives?|alternatively|else|and/or",
    r"(?:my )?(?:first|second|other|one|another)(?: possible)? (?:answer|thought|guess|attempt|try)|vice versa",
    r"the other way(?: a?round)?|for (?:now|the (?:moment|time being)|example|instance)|e\.g\.?|in either direction",
    r"such as(?= [-$(]*[0-9])|subject to (?:check|revis|change|confirm|verif|review|correct)\w*|let x",
    r"as an? (?:estimate|approximation|guess)|and change|(?<!, )ci",
    r"failing (?:that|which)|among (?:others|other)|take one|plan b",
    r"in case|provided that|take your pick|whichever|what ?ever|any (?:number|value|amount|year)|b\.?c\.?e?\.?",
    # no answer
    r"cannot|can't|can not|couldn't|unable|undetermined|indeterminate|undefined|n/a",
    r"not (?:available|given|known|disclosed|reported|stated|provided|enough)|inconclusive|inconsistent|fallback",
    r"todo|tbd|placeholder|dummy|no (?:answer|data|idea|value|result|information|decision)",
    r"don't know|do not know|refuse|null|nan",
    # the answer is taken back
    r"wait|actually|correction|oops|sorry|scratch that|on second thought|never ?mind|retract\w*|disregard|forget",
    r"earlier i|formerly reported|used to be|i meant|i said|i previously",
    r"i mean|rather(?! than)|no ?body|no one|to be (?:checked|confirmed|determined|decided|verified)|tbc|lambda|eval",
    r"exec|hm+|umm?|idk|dunno|imho|imo|afaik|iirc|shrug|joke|joking|kidding|opposite|lie|lying|pretend\w*|sarcas\w+",
    r"reverse of|negation|negate\w*|inverse|crossed out|obsolete|superseded",
    r"(?:is|are|was|be) (?:all |just |simply )?(?:false|untrue|wrong|incorrect|a lie|lies|not true|not right)",
    # irony
    r"oh,? sure|yeah,? right|as if|pigs|santa|fairy|(?:made )?of cheese|lol|ha ?ha|when hell|believe[sd]? (?:in|that)",
    # to the judge
    r"grader|graders|grading|ground truth|gold|ignore|assert|full marks|mark (?:as|this|it)|as correct|please|judge",
    r"(?:verify|check|confirm) (?:if|whether|that|this|it|with|the|again|first)|submit\w*|drop table",
)
"""Refused anywhere in an answer."""

DOUBTFUL = _words(
    r"(?:increas|decreas|ris|fall|gain|loss|up|down|profit|high|low)[a-z]*/(?:increas|decreas|ris|fall|gain|loss|up|"
    r"down|profit|high|low)[a-z]*",
    r"the (?:rest|remainder)",
    r"likely|uncertain\w*|could|would|should|appears?|(?<!no )doubt\w*|assum\w+|potentially|confiden\w+|depend\w*",
    r"chances?|odds|probabilit(?:y|ies)|candidates?|options?|unknown|unavailable|missing|insufficient|error|pending",
    r"hypothetical\w*|discard\w*|edit|previously|formerly|originally|restated|print|select(?= [-(]*[0-9])|draft",
    r"random\w*|swap\w*|reversed?|struck|deleted|void|withdrawn|grade|reward|rewards|truth|instructions?|system",
    r"accept|award\w*|score|import|provisional\w*|preliminary|unaudited|rumou?r\w*|ranges?|intervals?|ballpark",
)
"""Refused anywhere in an answer, unless the question has the same word: `doubtful accounts`, `stock options`."""

REJECTED = _words(
    r"not|never|none|false|falsely|untrue|wrong|wrongly|incorrect\w*|mistaken\w*|invalid|erroneous\w*",
    r"inaccurate|\w+n't|ain't|isnt|wasnt|doesnt|dont|arent|didnt|without|excluded?|excluding|except|rejects?",
    r"rejected|ruled out|den(?:y|ies|ied)|anything but|all but|other than|instead of|different from|far from",
    r"nowhere near|hardly|barely|too (?:low|high|small|large|big)|fail(?:s|ed|ing)?|contrary|refut\w+",
    r"disprov\w+|impossible|unequal|nothing|nicht|kein\w*|oder|pas|jamais|ou|peut-être|vielleicht|quizás|nunca",
    r"sino|non(?!-)|ni(?= [a-z]+ ni)|不|不是|或|或者|可能|并非|нет|не|или",
)
"""Refused in the statement that decides, and after it."""

ANOTHER_TIME = _words(
    r"(?:last|prior|previous|next|following|preceding|earlier|another|other|wrong) (?:fiscal )?"
    r"(?:year|period|quarter)(?:'s)?",
    r"(?:a|one|the) year (?:before|earlier|ago|later|after)|(?:prior|previous)-year",
)
"""Refused in the statement that decides: the value is of another time than the one asked for."""

NO_AS_DETERMINER = _words("no")

BOUNDS = word_set(
    "top over under above below beyond exceeding exceeded exceeds exceed than least most nearly almost "
    "topping topped between from until before after since maximum minimum max min within barely through "
    "ex excl near nearing approaching nearer"
)
"""Directly before a value: the value is a bound and not an answer."""

BOUNDS_AFTER = (
    "and counting",
    "at least",
    "at most",
    "minimum",
    "maximum",
    "and up",
    "upwards",
    "and above",
    "and more",
    "upward",
    "onward",
    "plus",
    "tops",
)

PLACES = word_set(
    "page pages table tables row rows item items note notes line lines step section column footnote "
    "exhibit schedule chapter paragraph appendix figure fig no number question q option choice part page. "
    "p. level version entry id room topic"
)
"""A whole number below 1000 directly after one of these words names a place."""

PLACES_OF_ANY_NUMBER = word_set(
    "page table row line note section exhibit chapter paragraph appendix column item figure fig version"
)
"""Any number directly after one of these words names a place."""

OPERATIONS = word_set("minus plus divided multiplied subtract added squared cubed less")
"""Between two values: the expression is not computed."""


def undecided(text: str, asked: Collection[str] = ()) -> bool:
    """Returns whether the text hedges, names alternatives, asks a question, or addresses its judge.

    Args:
        text: The text in lower case.
        asked: The words of the question; `DOUBTFUL` words among them do not count.
    """
    if UNDECIDED.search(text) or "?" in text or "¿" in text:
        return True
    return any(match[0] not in asked for match in DOUBTFUL.finditer(text))


def foreign(text: str) -> bool:
    """Returns whether a text has letters of scripts whose hedges are unknown, other than usual labels of answers."""
    text = _LABELS.sub("", text)
    return any(character > "\u024f" and character.isalpha() for character in text)


_LABELS = re.compile(
    r"(?:最终|最終|正确)?(?:答案|答え|回答|结果|結果)(?:是|为|為|は)?|ответ|итог|정답|답|は|です|である|元|円|年|约|約|[δς-ω]"
)


WORDS_OF_DECISIONS = _words("yes", "nope", "yep", "yeah", "true", "no(?=[,.;:!)]|$)")
"""Beside a number, or beside the boxed value that decides, these words are a second answer."""

_CLAUSE = re.compile(r"[.;!](?=\s|\Z)|\n|,\s*but\b")


def last_clause(text: str) -> int:
    """Returns where the last clause of a text begins."""
    starts = [match.end() for match in _CLAUSE.finditer(text.rstrip())]
    return starts[-1] if starts else 0


OR_EQUAL = "oreq"
"""Replaces an `or` between two numbers in a text."""
_EQUIVALENT = re.compile(
    r"(?:(?<=[0-9%)])|(?<=million)|(?<=billion)|(?<=thousand)|(?<=dollars)|(?<=percent)|(?<=times)|(?<=points)|"
    r"(?<=bps)|(?<=shares)|(?<=quarters)|(?<=years)|(?<=months)|(?<=stores)|(?<=employees))"
    r"(?:,? ?\(?)or (?:equivalently )?(?=(?:about |approximately |roughly )?[-+$]?\.?[0-9])"
    r"|(?<=[a-z)]), or (?=(?:about |approximately |roughly )?[-+$]?\.?[0-9])"
)


def without_equivalents(text: str) -> str:
    """Marks the `or` of `0.05 or 5%` as one between notations. Whether the amounts are equal is checked later."""
    return _EQUIVALENT.sub(f" {OR_EQUAL} ", text)
