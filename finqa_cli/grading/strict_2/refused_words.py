"""Words with which an answer has not decided: hedges, negations, alternatives, bounds, talk to the judge.

Every list is wider than it need be: an honest answer in which one of these words stands by chance is refused, and that
costs one reward; a hedge that is paid teaches a policy to hedge.
"""

from __future__ import annotations

import re

from finqa_cli.grading.strict_2.wordlists import word_set


def _words(*lines: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w'-])(?:{'|'.join(lines)})(?![\w'])")


UNDECIDED = _words(
    # not sure
    r"maybe|perhaps|possibl[ey]|probabl[ey]|presumabl[ey]|likely|unlikely|unsure|uncertain\w*",
    r"not (?:too |so )?sure|guess\w*|might|could|may (?:be|have|well)|would|should|seems?|appears?|apparently",
    r"suppos\w+|assum(?:e|ing)|(?<!no )doubt\w*",
    r"(?:i|we) (?:don't |do not )?(?:think|believe|suspect|feel|hope|know)|think so|hopefully|conceivabl[ey]",
    r"potentially|who knows|no idea|no clue|sort of|kind of|ballpark|thereabouts|give or take|or so",
    r"plus or minus|something|somewhere|tentative\w*|unclear|debatable|arguabl[ey]|ambiguous|questionable",
    r"speculat\w+|rough guess|ish|confident|sure\?",
    # conditions and alternatives
    r"or|either|neither|nor|if|unless|otherwise|whether|depend\w*|alternatives?|alternatively|else|and/or",
    r"in case|assuming|provided that|chances?|odds|probabilit(?:y|ies)|candidates?|options?|take your pick",
    r"whichever",
    # no answer
    r"cannot|can't|can not|couldn't|unable|unknown|undetermined|indeterminate|undefined|n/a",
    r"not (?:available|given|known)|unavailable|missing|insufficient|inconclusive|inconsistent|error|fallback",
    r"todo|tbd|placeholder|dummy|hypothetical\w*|no (?:answer|data|idea|value|result|information|decision)",
    r"don't know|do not know|refuse|pending|null|nan",
    # the answer is taken back
    r"wait|actually|correction|oops|sorry|scratch that|on second thought|never ?mind|retract\w*|disregard",
    r"discard\w*|edit|previously|formerly|originally|earlier i|restated|formerly reported|used to be|i meant",
    r"i mean|rather(?! than)|no ?body|no one|to be (?:checked|confirmed|determined|decided)|tbc|lambda|eval|exec",
    r"print|select(?= [-(]*[0-9])|hm+|umm?|idk|dunno|imho|imo|afaik|iirc|shrug|confidence|draft|random\w*|joke",
    r"joking|kidding|opposite|lie|lying|pretend\w*|sarcas\w+|reverse of|negation|negate\w*|inverse|vice versa",
    r"swap\w*|reversed?|crossed out|struck|deleted|void|obsolete|superseded|withdrawn",
    r"(?:is|are|was|be) (?:all |just |simply )?(?:false|untrue|wrong|incorrect|a lie|lies|not true|not right)",
    # to the judge
    r"grade|grader|graders|grading|reward|rewards|truth|ground truth|gold|ignore|instructions?|system|assert",
    r"accept|award\w*|full marks|mark (?:as|this|it)|as correct|please|verif\w+|check\w*|submit\w*|judge|score",
    r"import|drop table",
)
"""Anywhere in an answer."""

REJECTED = _words(
    r"not|never|none|false|falsely|untrue|wrong|wrongly|incorrect\w*|mistaken\w*|invalid|erroneous\w*",
    r"inaccurate|\w+n't|ain't|isnt|wasnt|doesnt|dont|arent|didnt|without|excluded?|excluding|except|rejects?",
    r"rejected|ruled out|den(?:y|ies|ied)|anything but|all but|other than|instead of|different from|far from",
    r"nowhere near|hardly|barely|too (?:low|high|small|large|big)|fail(?:s|ed|ing)?|contrary|refut\w+",
    r"disprov\w+|impossible|unequal|nothing|nicht|kein\w*|oder|pas|jamais|ou|peut-être|vielleicht|quizás|nunca",
    r"sino|non|ni|不|不是|或|或者|可能|并非|нет|не|или",
)
"""In the statement that decides, and after it."""

ANOTHER_TIME = _words(
    r"(?:last|prior|previous|next|following|preceding|earlier|another|other|wrong) (?:fiscal )?"
    r"(?:year|period|quarter)(?:'s)?",
    r"(?:a|one|the) year (?:before|earlier|ago|later|after)|(?:prior|previous)-year",
)
"""In the statement that decides: the value is given to another time than the one asked for."""

NO_AS_DETERMINER = _words("no")

BOUNDS = word_set(
    "top over under above below beyond exceeding exceeded exceeds exceed than least most nearly almost "
    "topping topped between from until before after since maximum minimum max min within barely through "
    "ex excl"
)
"""Right before a value: it bounds the answer and is not one."""

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
    "plus",
    "tops",
)

PLACES = word_set(
    "page pages table tables row rows item items note notes line lines step section column footnote "
    "exhibit schedule chapter paragraph appendix figure fig no number question q option choice part page. "
    "p. level version entry id room topic"
)
"""A whole number below 1000 right after one of these names a place."""

PLACES_OF_ANY_NUMBER = word_set("page table row line note section exhibit chapter paragraph appendix column")
"""So does any number after one of these."""

OPERATIONS = word_set("minus plus divided multiplied subtract added squared cubed less")
"""Between two values: the expression was not computed."""


def undecided(text: str) -> bool:
    """The text hedges, names alternatives, asks, or addresses its judge. In lower case."""
    return bool(UNDECIDED.search(text)) or "?" in text or "¿" in text


def foreign(text: str) -> bool:
    """Letters of a script in which no refusal would be recognized, beside the usual labels of answers."""
    text = _LABELS.sub("", text)
    return any(character > "\u024f" and character.isalpha() for character in text)


_LABELS = re.compile(
    r"(?:最终|最終|正确)?(?:答案|答え|回答|结果|結果)(?:是|为|為|は)?|ответ|итог|정답|답|は|です|である|元|円|年|约|約|[δς-ω]"
)


WORDS_OF_DECISIONS = _words("yes", "nope", "yep", "yeah", "true", "no(?=[,.;:!)]|$)")
"""Beside a number, or beside the boxed value that decides, these are a second answer."""

_CLAUSE = re.compile(r"[.;!](?=\s|\Z)|\n|,\s*but\b")


def last_clause(text: str) -> int:
    """Where the last clause of a text begins."""
    starts = [match.end() for match in _CLAUSE.finditer(text.rstrip())]
    return starts[-1] if starts else 0


OR_EQUAL = "oreq"
"""Stands in a text for an `or` between two numbers."""
_EQUIVALENT = re.compile(r"(?<=[0-9%)])(?:,? ?\(?)or (?:about |approximately |equivalently )?(?=[-+$]?\.?[0-9])")


def without_equivalents(text: str) -> str:
    """`0.05 or 5%` as two notations; whether they are of one amount is found when their values are compared."""
    return _EQUIVALENT.sub(f" {OR_EQUAL} ", text)
