"""Reads the name that an answer decides on."""

from __future__ import annotations

import re
from collections.abc import Collection

from finqa_cli.grading.strict_2 import refused_words
from finqa_cli.grading.strict_2.labels import is_common, is_foreign, is_related, quantities, unaccounted
from finqa_cli.grading.strict_2.names.ranked_series import HIGH, LOW, concluded
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
_TICKER = re.compile(r"[ ]?\((?:(?:NASDAQ|NYSE)[:,] ?)?[A-Z]{1,5}\)")
_TOKEN = re.compile(r"[^\W_]+(?:['.][^\W_]+)*|&|%")
_LABEL = re.compile(r"\A[\W_]*([A-Za-z][A-Za-z _-]{0,60}?)[ *_]*:(?=[\s*])")
_CONTRAST = re.compile(
    r"(?<!\bis)(?<!\b(?:was|are|has|had|did))(?<!\bwere)"
    r",?\s\(?(?:and )?(?:(?:not|rather than|instead of)(?: the)? (?=[A-Z])"
    r"|(?:ahead of|compared (?:to|with)|followed by|while|whereas)\s)"
)


_VERSUS = re.compile(r"(?:(?<=[0-9%MB])|(?<=million)|(?<=billion))\)?,?\s(?:versus|vs\.?)\s")
"""`versus` after an amount: `Visa, at 49.7%, versus Mastercard`. Two names without an amount are not a decision."""


def is_name(text: str, name: str, question: Question) -> bool:
    """Returns whether the text decides on this name: it is the name, or a sentence about this name and no other.

    Case, quotes, `the`, company suffixes and nouns such as `segment` are ignored. A label of words of the question may
    precede the name, and a contrast may follow it: `not Industrial`, `ahead of Industrial`.

    Args:
        text: The answer in its original case.
        name: The name that is expected.
        question: The question.
    """
    if has_digit(name) and len(_MINUS.findall(text)) != len(_MINUS.findall(name)):
        return False
    text = _ANY_OTHER.sub("most", _without_description(text, question))
    text = _IT_IS.sub("", _without_asked_year(text, name, question))
    if any(short in text.lower() for short in ("&", "capex", "cogs", "eps")):
        text = in_full(in_full(text, name.lower()), question.text)
    if has_digit(name):
        text = _WEEKDAY.sub("", text)
    if _WHOSE.search(question.text):
        text = text.replace("'s ", " ")
    text = _SOURCE.sub("", _HONORIFIC.sub("", _once(text)))
    text = _in_asked_scope(text, question)
    if _NOT_DOMESTIC.search(question.text) and _DOMESTIC.search(text) and not _APART.search(text):
        return False
    text = concluded(text, core(name_tokens(name)), question)
    if any(goes_otherwise(match[0].split(), question) for match in _WORDS_IN_BRACKETS.finditer(text)):
        return False
    if _is_refuted(text, question):
        return False
    text = _AMOUNTS.sub("", _TICKER.sub("", text, count=1), count=1)
    wanted = core(name_tokens(name))
    if not wanted or ("?" in text and "?" not in name):
        return False
    text = _without_contrast(without_label(text, wanted, question), wanted, question)
    given = name_tokens(text)
    if core(given) == wanted or _restates(text, wanted, question):
        return True
    lowered = " ".join(text.lower().split())
    announced = list(STRONG.finditer(lowered))
    if announced and core(name_tokens(lowered[announced[-1].end() :])) == wanted:
        return not (
            refused_words.undecided(lowered, question.words)
            or refused_words.REJECTED.search(lowered[clause_start(lowered, announced[-1].start()) :])
        )
    return _is_sentence_about(given, text, wanted, question)


def _in_asked_scope(text: str, question: Question) -> str:
    """Returns a text without `non-U.S.`, if the question asks about things outside the United States."""
    return _FOREIGN.sub("", text) if _NOT_DOMESTIC.search(question.text) else text


_FOREIGN = re.compile(
    r"\bnon-(?:U\.S\.(?:A\.)?|USA?)(?: |(?=\.?\Z))|,? \(?(?:other than|outside(?: of)?|excluding|besides) the "
    r"(?:U\.S\.|United States)(?![\w'])\)?"
)
_DOMESTIC = re.compile(r"\bU\.S\.|\bUSA?\b|\bUnited States\b|\b[Dd]omestic\b")
_APART = re.compile(
    r"\b(?:not|other|outside|excluding|except|besides|apart|ahead|than|behind|after|foreign)\b", re.IGNORECASE
)
_NOT_DOMESTIC = re.compile(
    r"\b(?:other than|outside(?: of)?|excluding|besides|apart from|except(?: for)?) (?:the )?"
    r"(?:united states|u\.s\.|usa?\b)|\bnon-(?:u\.s\.|usa?\b)"
)


_WORDS_IN_BRACKETS = re.compile(r"(?<=\()[a-z][a-z ]{1,20}(?= [$0-9])")


def _restates(text: str, name: list[str], question: Question) -> bool:
    """Returns whether the sentence is the question with the name instead of `which company`."""
    given, asked = name_tokens(text), name_tokens(question.text)
    rest = given[len(name) :]
    if not rest or not _TOKEN.findall(text)[len(name)].islower() or not _PLAIN.fullmatch(text):
        return False
    if given[: len(name)] != name or "or" in rest or asked[:1] not in (["which"], ["what"], ["who"]):
        return False
    return any(asked[start : start + len(rest)] == rest for start in range(1, _MOST_NOUNS + 2))


_PLAIN = re.compile(r"[\w' &%$.-]+")
_MOST_NOUNS = 3


def _scope_asked(text: str, asked: Collection[str]) -> str:
    """Returns a text without words such as `excluding`, if the question has such words, too."""
    return " ".join(word for word in text.split(" ") if word not in _LEAVES_OUT) if _LEAVES_OUT & set(asked) else text


_LEAVES_OUT = frozenset(("outside", "other", "except", "excluding", "besides"))
GROWTH = frozenset(("growth", "growing", "improve"))
"""Words of an increase that may be beside a number without giving it a sign."""
_WHOSE = re.compile(r"\b(?:which|what) (?:[a-z]+ ){0,2}[a-z]+'s\b|\bwhose\b")
_WEEKDAY = re.compile(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day,? (?=[A-Za-z]+\.? [0-9])")
_IT_IS = re.compile(r"\A\s*(?:it|that)'s (?=[A-Z])", re.IGNORECASE)


def _without_asked_year(text: str, name: str, question: Question) -> str:
    """Returns a text without the year of the question at its end: `the fourth quarter of 2018`."""
    year = _YEAR_AT_END.search(text)
    return text[: year.start()] if year and year[1] in question.years and year[1] not in name else text


_YEAR_AT_END = re.compile(r",? (?:of |in |for )?(?:FY ?|fiscal (?:year )?)?((?:19|20)[0-9]{2})\.?\Z")


def _once(text: str) -> str:
    """Returns the line of a text that repeats it once; other texts are unchanged."""
    lines = [line.strip(" *.\x1f") for line in text.split("\n") if line.strip(" *.\x1f")]
    return lines[0] if len(lines) == 2 and lines[0].lower() == lines[1].lower() else text


_HONORIFIC = re.compile(r"(?<![\w'])(?:Mr|Ms|Mrs|Dr)\.? (?=[A-Z])")
_SOURCE = re.compile(
    r"[ ]\((?i:(?:see |per |from |according to |source: ?)?(?:the )?(?:note|page|item|p\.|table|exhibit|form|"
    r"10-[KQ]|cover|balance sheet))(?:[^()\n:A-Z]|10-[KQ]|Form|Annual Report|Item|Part|Note|Exhibit|Page|"
    r"[IVX]{1,3}\b|Consolidated|"
    r"Statements?|Balance Sheets?|Operations|Segments?|Information|Financial|Cash Flows?|Risk Factors|"
    r"Long-Term|Debt|Borrowings|Leases|Income Taxes|Commitments|Contingencies|Revenues?|Acquisitions?|Goodwill|Equity|"
    r"Subsequent Events|Properties|Business|Legal Proceedings|Organization|Related Part(?:y|ies)){0,40}\)(?=\.?\s*\Z)"
)
"""A bracket that names a source and no other names: `(cover page: Nevada)` contains another answer."""
_MINUS = re.compile(r"(?<![\w)])-[ ]?[$€£]?[0-9]")
_ANY_OTHER = re.compile(r"\bmore than any other(?: [a-z]+)?\b")
_DESCRIBED = re.compile(r"(?<=\w)\.? \(([A-Za-z][A-Za-z0-9 ,'-]{2,80})\)\.?\Z")
_FACTS = _STARTERS | word_set(
    "acquired bought purchased sold founded headquartered based located january february march april may june july "
    "august september october november december early late"
)


def has_digit(text: str) -> bool:
    """Returns whether a text contains a digit."""
    return any(character.isdigit() for character in text)


def _without_description(text: str, question: Question) -> str:
    """Returns a name without a bracket at its end that describes it in words of the question."""
    described = _DESCRIBED.search(text)
    if described is None:
        return text
    words = re.findall(r"[a-z']+", described[1].lower())
    known = len(words) > 1 and all(word in _FACTS or word in question.words for word in words)
    rejects = refused_words.REJECTED.search(described[1].lower()) or refused_words.undecided(described[1].lower())
    return text[: described.start()] if known and not rejects else text


def without_label(text: str, wanted: list[str], question: Question) -> str:
    """Removes a label such as `Auditor: ` before a name, if its words are related to the question."""
    label = _LABEL.match(text)
    if label is None:
        return text
    words = re.split(r"[ _-]+", label[1].lower())
    if core(words) == wanted:
        return text
    known = all(
        word == "date" or word in question.words or word in _STARTERS | _NOUNS or not is_foreign([word], question.words)
        for word in words
    )
    return text[label.end() :] if known else text


def _without_contrast(text: str, wanted: list[str], question: Question) -> str:
    """Returns the text up to a contrast, `not X` or `ahead of X`, if the name is before it and not after it."""
    contrast = _contrast(text, question)
    if contrast is None:
        return text
    before, after = name_tokens(text[: contrast.start()]), name_tokens(text[contrast.end() :])
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
    """Returns where a contrast to another name begins, in the direction in which the question ranks them."""
    comparison = None
    if LOW.search(question.text):
        comparison = _SMALLER.search(text)
    elif HIGH.search(question.text):
        comparison = _LARGER.search(text)
    return _CONTRAST.search(text) or _VERSUS.search(text) or comparison


def _is_refuted(text: str, question: Question) -> bool:
    """Returns whether the amounts of both sides contradict the ranking: `X (120), ahead of Y (140)`."""
    contrast = _contrast(text, question)
    if contrast is None or not (LOW.search(question.text) or HIGH.search(question.text)):
        return False
    sides = [_AMOUNT.findall(part) for part in (text[: contrast.start()], text[contrast.start() :])]
    if [len(side) for side in sides] != [1, 1] or sides[0][0][1] != sides[1][0][1]:
        return False
    first, second = (float(side[0][0].replace(",", "")) for side in sides)
    return first > second if LOW.search(question.text) else first < second


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
    said_less = _LESS if _is_less(said, question) else frozenset()
    if any(match[0] not in asked | leaves_out | said_less for match in _OTHERS.finditer(said)) or other_extreme(
        said, question
    ):
        return False
    ranks = HIGH.search(said) or LOW.search(said) or " by " in f" {said}"
    of = quantities(said) if ranks else frozenset()
    if of and question.quantities and not of & question.quantities:
        return False  # the highest of another measure
    if f"{wanted[-1]}'s" in text.lower() or (place and given[0] not in _STARTERS | asked):
        return False
    before, after = _around(text.lower(), wanted)
    if _is_passive(before, question):
        before = ""
    if (before not in _LEADS | _FIRMS and (not has_digit(wanted[-1]) or is_foreign([before], question.words))) or (
        after not in _FOLLOWS | asked and not is_related((after,), question.words)
    ):
        return False
    if _leaves_out_not(text, rest, question):
        return False
    if not _other_choices(wanted, question).isdisjoint(rest):
        return False
    years = {word for word in rest if _YEAR.fullmatch(word)}
    if years and question.years and not years & question.years:
        return False
    clause = _clause_words(text, wanted)
    if goes_otherwise(clause, question):
        return False
    known = _KNOWN | leaves_out | (frozenset() if question.quantities else _SALES)
    clause = [word for word in clause if word not in known and not (HIGH.fullmatch(word) or LOW.fullmatch(word))]
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
        and not (has_digit(wanted[-1]) and word.lower() in asked)
        and not (leaves_out and word.lower() in question.left_out)
        and (is_foreign([word.lower()], question.words) or not word.isupper() or len(word) < 2)
    ]
    return not names and not refused_words.NO_AS_DETERMINER.search(said)


def _leaves_out_not(text: str, rest: list[str], question: Question) -> bool:
    """Returns whether the answer lacks the question's `not`: `Omega was profitable` to which company was not."""
    if not _NEGATED.search(question.text) or _NEGATED.search(text.lower()):
        return False
    return any(word in question.words and not is_common(word) for word in rest)


_NEGATED = re.compile(r"\b(?:not|never|no|neither|\w+n't)\b")


def _is_passive(verb: str, question: Question) -> bool:
    """Returns whether the question has the verb in the passive: `the company sold X` for `which units were sold`."""
    return bool(verb) and re.search(rf"\b(?:was|were|been) (?:[a-z]+ )?{re.escape(verb)}\b", question.text) is not None


def _is_less(said: str, question: Question) -> bool:
    """Returns whether `lower`, `less` or `fewer` answers a question about a decrease: `reported lower revenue`."""
    asked = set(question.words)
    ranks = HIGH.search(question.text) or LOW.search(question.text)
    others = DOWN.intersection(said.split()) - _LESS
    return bool(asked & DOWN) and not (asked & (UP | GROWTH) or ranks or others)


_LESS = frozenset(("lower", "less", "fewer"))


def goes_otherwise(words: Collection[str], question: Question) -> bool:
    """Returns whether the words are about an increase and the question asks for a decrease, or vice versa."""
    asked = set(question.words)
    up = UP | GROWTH
    is_down, is_up = bool(asked & DOWN), bool(asked & up)
    opposite, same = (up, DOWN) if is_down else (DOWN, up)
    return is_down != is_up and not opposite.isdisjoint(words) and same.isdisjoint(words)


def _other_choices(wanted: list[str], question: Question) -> set[str]:
    """Returns the words of the other names in a question such as `which was larger, X or Y?`."""
    asked = question.text.partition("?")[0].rpartition(", ")[2]
    choices = [name_tokens(choice) for choice in asked.split(" or ")]
    if len(choices) < 2 or not any(_places(choice, wanted) for choice in choices):
        return set()
    others = {word for choice in choices if not _places(choice, wanted) for word in choice}
    return {word for word in others - set(wanted) if not is_common(word)}


def _clause_words(text: str, wanted: list[str]) -> list[str]:
    """Returns the words of the clause that contains a name, without those of the name."""
    name = re.compile(r"\W+".join(map(re.escape, wanted)).replace("and", "(?:and|&)"), re.IGNORECASE)
    parts = _CLAUSES.split(name.sub(f" {_MARK} ", text, count=1))
    words = [word for part in parts if _MARK in part for word in name_tokens(part)]
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
    """Returns whether a text is about the lowest and the question asks for the highest, or vice versa."""
    high, low = bool(HIGH.search(question.text)), bool(LOW.search(question.text))
    if high == low:
        return False
    return bool((LOW if high else HIGH).search(said))


def _around(text: str, wanted: list[str]) -> tuple[str, str]:
    """Returns the words directly before and after a name; "" at the ends of its clause, "?" if it is not found."""
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


def name_tokens(text: str) -> list[str]:
    """Returns the words of a name or a sentence in lower case, with `and` for `&`."""
    return ["and" if word == "&" else word.lower().rstrip(".") for word in _TOKEN.findall(text)]


def core(words: list[str]) -> list[str]:
    """Returns a name without `the`, suffixes of companies and nouns such as `segment`; at least one word is kept."""
    kept = list(words)
    while len(kept) > 1 and kept[-1] in _SUFFIXES | _NOUNS:
        kept.pop()
    while len(kept) > 1 and kept[0] == "the":
        kept = kept[1:]
    return kept


_SALES = word_set("net sales revenue revenues")
"""Quantities of an amount beside a name, if the question names no quantity: `X accounted for 17% of sales`."""
_KNOWN = (
    word_set("named listed shown called identified reported date financial statements served serves")
    | _STARTERS
    | _NOUNS
    | _SUFFIXES
    | _LEADS
    | _FOLLOWS
)
