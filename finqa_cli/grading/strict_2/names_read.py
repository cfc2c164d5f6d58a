"""The name that an answer decides on."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from itertools import permutations

from finqa_cli.grading.strict_2 import refused_words
from finqa_cli.grading.strict_2.labels import is_common, is_foreign, is_related, quantities, unaccounted
from finqa_cli.grading.strict_2.notations import in_full
from finqa_cli.grading.strict_2.number_words import DOWN, NUMERAL, UP, word_set
from finqa_cli.grading.strict_2.question import Question
from finqa_cli.grading.strict_2.statement import STRONG, clause_start

_SUFFIXES = word_set(
    "inc inc. incorporated corp corp. corporation co co. company ltd ltd. limited plc llc lp llp l.l.p l.l.c n.v s.a "
    "s.p.a sa ag nv se spa bv kg oy ab asa gmbh group holdings holding"
)
_NOUNS = word_set("segment segments division region business unit area category market company group the")
_STARTERS = word_set(
    "only the it based in answer final result for according therefore so my a of thus hence that this as by at "
    "among on looking company segment due"
)
_OTHERS = re.compile(
    r"(?<![\w'-])(?:and|than|compare\w*|versus|vs|like|similar\w*|such|rival\w*|competitor\w*|subsidiar\w+|unlike|beat|"
    r"beats|beaten|between|both|except|outside|excluding|former\w*|parent|follow\w*|behind|after|before|until|"
    r"second|third|"
    r"runner-up|2nd|3rd|los(?:er|es|t)|less|fewer|worse|worst|lower|lowest|smaller|smallest|least|minimum|surpassed|"
    r"overtaken|dismissed|replaced|succeeded|successor|predecessor|resigned|formerly|previously|others?|"
    r"first then)(?![\w'])"
)
_HIGH = re.compile(
    r"(?<![\w'-])(?:highest|largest|greatest|biggest|most|maximum|peaked|higher|larger|greater|bigger|more|"
    r"top)(?![\w'])"
)
_LOW = re.compile(r"(?<![\w'-])(?:lowest|smallest|least|minimum|lower|smaller|less|fewer|fewest)(?![\w'])")
_TICKER = re.compile(r"[ ]?\((?:(?:NASDAQ|NYSE)[:,] ?)?[A-Z]{1,5}\)")
_TOKEN = re.compile(r"[^\W_]+(?:['.][^\W_]+)*|&|%")
_LABEL = re.compile(r"\A[\W_]*([A-Za-z][A-Za-z _-]{0,60}?)[ *_]*:(?=[\s*])")
_CONTRAST = re.compile(
    r",?\s\(?(?:and )?(?:(?:not|rather than|instead of)(?: the)? (?=[A-Z])"
    r"|(?:ahead of|compared (?:to|with)|followed by|while|whereas)\s)"
)


_VERSUS = re.compile(r"(?:(?<=[0-9%MB])|(?<=million)|(?<=billion))\)?,?\s(?:versus|vs\.?)\s")
"""After an amount: `Visa, at 49.7%, versus Mastercard`. Two names alone are no decision."""


def is_name(text: str, name: str, question: Question) -> bool:
    """The text decides on this name: it is the name, or a sentence about the name and no other.

    Case, quotes, `the`, company suffixes and nouns such as `segment` do not count; a label of words of the question
    may stand before it, and what it is set apart from after it: `not Industrial`, `ahead of Industrial`.

    Args:
        text: The answer in its own case.
        name: The name that is expected.
        question: The question.
    """
    if _has_digit(name) and len(_MINUS.findall(text)) != len(_MINUS.findall(name)):
        return False
    text = _ANY_OTHER.sub("most", _without_description(text, question))
    text = _IT_IS.sub("", _without_asked_year(text, name, question))
    if any(short in text.lower() for short in ("&", "capex", "cogs", "eps")):
        text = in_full(in_full(text, name.lower()), question.text)
    if _has_digit(name):
        text = _WEEKDAY.sub("", text)
    if _WHOSE.search(question.text):
        text = text.replace("'s ", " ")
    text = _SOURCE.sub("", _HONORIFIC.sub("", _once(text)))
    if _is_refuted(text, question):
        return False
    text = _AMOUNTS.sub("", _TICKER.sub("", text, count=1), count=1)
    wanted = _core(_tokens(name))
    if not wanted or ("?" in text and "?" not in name):
        return False
    text = _without_contrast(_without_label(text, wanted, question), wanted, question)
    given = _tokens(text)
    if _core(given) == wanted:
        return True
    lowered = " ".join(text.lower().split())
    announced = list(STRONG.finditer(lowered))
    if announced and _core(_tokens(lowered[announced[-1].end() :])) == wanted:
        return not (
            refused_words.undecided(lowered, question.words)
            or refused_words.REJECTED.search(lowered[clause_start(lowered, announced[-1].start()) :])
        )
    return _is_sentence_about(given, text, wanted, question)


def _scope_asked(text: str, asked: Collection[str]) -> str:
    """A text without the words that leave something out, where the question leaves it out too."""
    return " ".join(word for word in text.split(" ") if word not in _LEAVES_OUT) if _LEAVES_OUT & set(asked) else text


_LEAVES_OUT = frozenset(("outside", "other", "except", "excluding", "besides"))
_GROWTH = frozenset(("growth", "growing", "improve"))
_WHOSE = re.compile(r"\b(?:which|what) (?:[a-z]+ ){0,2}[a-z]+'s\b|\bwhose\b")
_WEEKDAY = re.compile(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day,? (?=[A-Za-z]+\.? [0-9])")
_IT_IS = re.compile(r"\A\s*(?:it|that)'s (?=[A-Z])", re.IGNORECASE)


def _without_asked_year(text: str, name: str, question: Question) -> str:
    """A text without the year of the question at its end: `the fourth quarter of 2018`."""
    year = _YEAR_AT_END.search(text)
    return text[: year.start()] if year and year[1] in question.years and year[1] not in name else text


_YEAR_AT_END = re.compile(r",? (?:of |in |for )?(?:FY ?|fiscal (?:year )?)?((?:19|20)[0-9]{2})\.?\Z")


def _once(text: str) -> str:
    """A text of two lines that are the same, as one."""
    lines = [line.strip(" *.\x1f") for line in text.split("\n") if line.strip(" *.\x1f")]
    return lines[0] if len(lines) == 2 and lines[0].lower() == lines[1].lower() else text


_HONORIFIC = re.compile(r"(?<![\w'])(?:Mr|Ms|Mrs|Dr)\.? (?=[A-Z])")
_SOURCE = re.compile(
    r"[ ]\((?:see |per |source: ?)?(?:the )?(?:note|page|item|p\.|table|exhibit|form|10-[KQ]|"
    r"balance sheet)[^()\n]{0,40}\)(?=\.?\s*\Z)",
    re.IGNORECASE,
)
_MINUS = re.compile(r"(?<![\w)])-[ ]?[$€£]?[0-9]")
_ANY_OTHER = re.compile(r"\bmore than any other(?: [a-z]+)?\b")
_DESCRIBED = re.compile(r"(?<=\w)\.? \(([A-Za-z][A-Za-z0-9 ,'-]{2,80})\)\.?\Z")
_FACTS = _STARTERS | word_set(
    "acquired bought purchased sold founded headquartered based located january february march april may june july "
    "august september october november december early late"
)


def listed_names(truth: str, question: Question) -> tuple[str, ...]:
    """The names of a truth that is a list of them, `["Films", "Paper"]` or `Films, Paper`; empty for another truth."""
    text = truth.strip()
    if text.startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            return ()
        is_list = isinstance(names, list) and all(isinstance(one, str) and not _has_digit(one) for one in names)
        return tuple(names) if is_list and 1 < len(names) <= _MOST_NAMES else ()
    if _has_digit(text) or not _SEVERAL.search(question.text):
        return ()
    names = _AND.split(text)
    return tuple(names) if 1 < len(names) <= _MOST_NAMES else ()


def are_names(text: str, names: Sequence[str], question: Question) -> bool:
    """The text decides on these names and no others: the names alone, each with an amount, or one sentence.

    They may come in any order, unless the question asks for one.
    """
    lowered = text.lower()
    if refused_words.undecided(lowered, question.words) or refused_words.REJECTED.search(lowered):
        return False
    if "loss" in question.words and _GAIN.search(lowered) and "loss" not in lowered:
        return False
    lines = _EVERY_AMOUNT.sub("", text)
    text = " ".join(lines.split("\n")).replace(", and ", " and ")
    wanted = [_core(_tokens(name)) for name in names]
    listed = _AND.split(_without_label(lines, [], question))
    given = [_core(_tokens(part)) for part in listed if _tokens(part)]
    is_ordered = bool(_ORDERED.search(question.text))
    if given == wanted or (not is_ordered and sorted(given) == sorted(wanted)):
        return True
    orders = permutations(names) if len(names) < 4 and not is_ordered else [tuple(names)]
    joined = (f"{', '.join(order[:-1])} and {order[-1]}" for order in orders)
    return any(is_name(text, name, question) for name in joined if _tokens(name)[0] in text.lower())


_GAIN = re.compile(r"\b(?:income|profit)s?\b")
_MOST_NAMES = 8
_AND = re.compile(r",? and |[,;/] |\n|,? & ")
_SEVERAL = re.compile(
    r"\b(?:which|what) (?:are|were|two|three|four|five|(?:[a-z]+ ){0,2}(?!(?:was|is|has|does)\b)[a-z]+[a-rt-z]s\b)"
    r"|\b(?:list|name) (?:the|all|two)\b"
)
_ORDERED = re.compile(
    r"\border\b|\brank|\brespectively\b|\b(?:de|a)scending\b|\bfirst\b|\bto (?:smallest|largest|lowest|highest)\b"
)
_EVERY_AMOUNT = re.compile(
    r"[ ]\((?:loss of |up |down )?[-+]?[$€£]?[0-9][0-9.,]{0,20}(?:%|x|B|M| million| billion| thousand)?\)"
)


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _without_description(text: str, question: Question) -> str:
    """A name without what a bracket at its end says of it in words of the question: `(acquired in October 2017)`."""
    described = _DESCRIBED.search(text)
    if described is None:
        return text
    words = re.findall(r"[a-z']+", described[1].lower())
    known = len(words) > 1 and all(word in _FACTS or word in question.words for word in words)
    rejects = refused_words.REJECTED.search(described[1].lower()) or refused_words.undecided(described[1].lower())
    return text[: described.start()] if known and not rejects else text


def _without_label(text: str, wanted: list[str], question: Question) -> str:
    """`Auditor: ` before a name, where its words are those of the question."""
    label = _LABEL.match(text)
    if label is None:
        return text
    words = re.split(r"[ _-]+", label[1].lower())
    if _core(words) == wanted:
        return text
    known = all(
        word == "date" or word in question.words or word in _STARTERS | _NOUNS or not is_foreign([word], question.words)
        for word in words
    )
    return text[label.end() :] if known else text


def _without_contrast(text: str, wanted: list[str], question: Question) -> str:
    """The text up to what the name is set apart from, where the name stands before it and not after it."""
    contrast = _contrast(text, question)
    if contrast is None:
        return text
    before, after = _tokens(text[: contrast.start()]), _tokens(text[contrast.end() :])
    years = {word for word in after if _YEAR.fullmatch(word)}
    another = _ANOTHER_RANK if contrast.re in (_LARGER, _SMALLER) else _EXTREME
    if (years and question.years and not years & question.years) or another.search(text, contrast.end()):
        return text
    stands = _places(before, wanted) and not _places(after, wanted)
    return (
        _OPEN_AMOUNT.sub("", text[: contrast.start()]) if stands and not refused_words.undecided(text.lower()) else text
    )


_LARGER = re.compile(
    r"\s(?:(?:was|were|is|are) )?(?:larger|higher|greater|bigger|more) than\s"
    r"|\s(?:exceeded|exceeds|surpassed|topped|outpaced)\s(?!by\b)"
)
_SMALLER = re.compile(r"\s(?:(?:was|were|is|are) )?(?:smaller|lower|less|fewer) than\s")


_EXTREME = re.compile(r"\b(?:behind|second(?! quarter))\b|\b(?:larg|high|great|bigg|small|low)est\b|\b(?:most|least)\b")
_ANOTHER_RANK = re.compile(
    rf"\b(?:but|had|has|have|was|were|(?:larg|high|great|bigg|small|low)er)\b|{_EXTREME.pattern}"
)


def _contrast(text: str, question: Question) -> re.Match[str] | None:
    """Where a name begins to be set apart from another, as the question ranks them."""
    comparison = None
    if _LOW.search(question.text):
        comparison = _SMALLER.search(text)
    elif _HIGH.search(question.text):
        comparison = _LARGER.search(text)
    return _CONTRAST.search(text) or _VERSUS.search(text) or comparison


def _is_refuted(text: str, question: Question) -> bool:
    """Each side has one amount, and they stand the other way round: `X (120), ahead of Y (140)`."""
    contrast = _contrast(text, question)
    if contrast is None or not (_LOW.search(question.text) or _HIGH.search(question.text)):
        return False
    sides = [_AMOUNT.findall(part) for part in (text[: contrast.start()], text[contrast.start() :])]
    if [len(side) for side in sides] != [1, 1] or sides[0][0][1] != sides[1][0][1]:
        return False
    first, second = (float(side[0][0].replace(",", "")) for side in sides)
    return first > second if _LOW.search(question.text) else first < second


_AMOUNT = re.compile(rf"(?<![\w.,])[$€£]?((?!(?:19|20)[0-9]{{2}}\b){NUMERAL})( ?%| million| billion|M|B|)(?!\w)")
_OPEN_AMOUNT = re.compile(r"[ ]\([ ]?[$€£]?[0-9][0-9.,]{0,20}(?:%|x|B|M| million| billion)?,?\Z")


def _places(given: list[str], wanted: list[str]) -> list[int]:
    return [place for place in range(len(given)) if given[place : place + len(wanted)] == wanted]


def _is_sentence_about(given: list[str], text: str, wanted: list[str], question: Question) -> bool:
    places = _places(given, wanted)
    if len(places) != 1 or len(given) > _MOST_WORDS:
        return False
    place = places[0]
    written = _TOKEN.findall(text)
    rest = [*given[:place], *given[place + len(wanted) :]]
    others = [*written[:place], *written[place + len(wanted) :]]
    said, asked = " ".join(rest), set(question.words)
    if rest[place : place + 1] == ["and"] or rest[max(0, place - 1) : place] == ["and"]:
        return False  # another name beside it
    if refused_words.undecided(text.lower(), asked) or refused_words.REJECTED.search(_scope_asked(said, asked)):
        return False
    leaves_out = _LEAVES_OUT if _LEAVES_OUT & asked else frozenset()
    if any(match[0] not in asked | leaves_out for match in _OTHERS.finditer(said)) or other_extreme(said, question):
        return False
    ranks = _HIGH.search(said) or _LOW.search(said) or " by " in f" {said}"
    of = quantities(said) if ranks else frozenset()
    if of and question.quantities and not of & question.quantities:
        return False  # the highest of another measure
    if f"{wanted[-1]}'s" in text.lower() or (place and given[0] not in _STARTERS | asked):
        return False
    before, after = _around(text.lower(), wanted)
    if (before not in _LEADS | _FIRMS and (not _has_digit(wanted[-1]) or is_foreign([before], question.words))) or (
        after not in _FOLLOWS | asked and not is_related((after,), question.words)
    ):
        return False
    if not _other_choices(wanted, question).isdisjoint(rest):
        return False
    years = {word for word in rest if _YEAR.fullmatch(word)}
    if years and question.years and not years & question.years:
        return False
    clause = _clause_words(text, wanted)
    asked_down, asked_up = bool(asked & DOWN), bool(asked & (UP | _GROWTH))
    if (
        asked_down != asked_up
        and set(clause) & (UP if asked_down else DOWN)
        and not set(clause) & (DOWN if asked_down else UP)
    ):
        return False
    known = _KNOWN | leaves_out | (frozenset() if question.quantities else _SALES)
    clause = [word for word in clause if word not in known and not (_HIGH.fullmatch(word) or _LOW.fullmatch(word))]
    years = {word for word in clause if word.isdigit()}
    if ("loss" in clause and "loss" not in asked) or (question.years and years - question.years):
        return False
    if unaccounted([word for word in clause if word.isalpha()], question.words) or ">" in text or "<" in text:
        return False
    names = [
        word
        for word in others[1 if place else 0 :]
        if word[:1].isupper()
        and word.lower() not in _SUFFIXES | _NOUNS
        and not (_has_digit(wanted[-1]) and word.lower() in asked)
        and not (leaves_out and word.lower() in question.left_out)
        and (is_foreign([word.lower()], question.words) or not word.isupper() or len(word) < 2)
    ]
    return not names and not refused_words.NO_AS_DETERMINER.search(said)


def _other_choices(wanted: list[str], question: Question) -> set[str]:
    """The words of the other names of `which was larger, X or Y?`."""
    asked = question.text.partition("?")[0].rpartition(", ")[2]
    choices = [_tokens(choice) for choice in asked.split(" or ")]
    if len(choices) < 2 or not any(_places(choice, wanted) for choice in choices):
        return set()
    others = {word for choice in choices if not _places(choice, wanted) for word in choice}
    return {word for word in others - set(wanted) if not is_common(word)}


def _clause_words(text: str, wanted: list[str]) -> list[str]:
    """The words of the clause that a name stands in, without those of the name."""
    name = re.compile(r"\W+".join(map(re.escape, wanted)).replace("and", "(?:and|&)"), re.IGNORECASE)
    parts = _CLAUSES.split(name.sub(f" {_MARK} ", text, count=1))
    words = [word for part in parts if _MARK in part for word in _tokens(part)]
    return [word for word in words if (word.isalpha() and word != _MARK) or _YEAR.fullmatch(word)]


_YEAR = re.compile(r"(?:19|20)[0-9]{2}")
_MARK = "nameinquestion"


_CLAUSES = re.compile(r"[,;:()\n]|\.(?=\s)|\b(?:because|since|as|with|while|which)\b")
_AMOUNTS = re.compile(
    r"\((?!(?:19|20)[0-9]{2}\))\s?[$~]?[0-9][0-9.,]{0,20}(?:%|x|B|M| million| billion)?"
    r"(?: (?:vs\.?|versus|compared (?:to|with)|against) [$~]?[0-9][0-9.,]{0,20}(?:%|x|B|M| million| billion)?)?\s?\)"
)
_MOST_WORDS = 40


def other_extreme(said: str, question: Question) -> bool:
    """What is said is about the lowest, and the question asks for the highest, or the other way round."""
    high, low = bool(_HIGH.search(question.text)), bool(_LOW.search(question.text))
    if high == low:
        return False
    return bool((_LOW if high else _HIGH).search(said))


def _around(text: str, wanted: list[str]) -> tuple[str, str]:
    """The words right before and after a name; nothing where it begins or ends its clause."""
    found = re.search(r"\W+".join(map(re.escape, wanted)).replace("and", "(?:and|&)"), text)
    if found is None:
        return "?", "?"
    if text[found.end() :][:1] == "-" or text[: found.start() + 1].rstrip(" \"'*(").endswith("-"):
        return "?", "?"
    before = re.search(r"([^\W_]+)[ \"'*]*\Z", text[: found.start()])
    after = re.match(
        r"[ \"'*]*(?:,? ?(?:inc|corp|ltd|plc|co|llp|llc|l\.l\.p|l\.l\.c|s\.a|n\.v|ag|se|sa|nv|lp|group|company|"
        r"corporation|"
        r"incorporated|limited|holdings)\b\.?)?[ \"'*]*([^\W_]+)?",
        text[found.end() :],
    )
    return before[1] if before else "", (after[1] or "") if after else ""


_LEADS = frozenset({""}) | word_set(
    "only is was are were on reads the by at for answer company segment in of from be that auditor being due"
)
_FIRMS = frozenset(("firm", "company"))
_FOLLOWS = frozenset({""}) | word_set(
    "served serves audited "
    "had has have is was were are reported recorded posted paid earned generated made with which achieved showed shows "
    "reports in at by segment region division company held holds ranks ranked came led leads because since as when "
    "did does delivered produced contributed topped saw grew accounted represented"
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


_SALES = word_set("net sales revenue revenues")
"""What an amount beside a name may be of, where the question names no quantity: `X accounted for 17% of sales`."""
_KNOWN = (
    word_set("named listed shown called identified reported date financial statements served serves")
    | _STARTERS
    | _NOUNS
    | _SUFFIXES
    | _LEADS
    | _FOLLOWS
)
