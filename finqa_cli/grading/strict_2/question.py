"""Reads in a question the form of its answer: scale, years, points, direction, measures, numbers that it repeats.

A truth is often a bare number in a unit that only the question names, as in `By how much did net income change, in
millions?` and `-77`. With the question, `-$77 million` is right and `-77 billion` is not. Without the question, the
answer is compared with the truth alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from finqa_cli.grading.numbers import NO_UNIT, Kind, Number, Unit
from finqa_cli.grading.strict_2.labels import quantities
from finqa_cli.grading.strict_2.number_words import word_set
from finqa_cli.grading.strict_2.units import CURRENCIES, MEASURES, SCALES, TIMES

LONGEST = 600
"""Largest number of characters. A longer text is a prompt with tables, whose years and scales are not those asked for.

"""

_SCALE = re.compile(
    r"\b(?:in|\(in|as|to the nearest|expressed in)\s+(?:us |u\.s\. )?(?:[$€£¥₹]\s?|usd |eur )?(?:whole )?"
    rf"({'|'.join(word for word in SCALES if len(word) > 3)})\b"
    r"|\bhow many (hundred|thousand|million|billion)s?\b"
)
_SCALE_IN_BRACKETS = re.compile(r"\((thousands|millions|billions)(?: of \w+)?\)")
_YEARS = re.compile(r"(?<![0-9.,])(?:19|20)[0-9]{2}(?![0-9]|[.,][0-9])")
_SHORT_YEARS = re.compile(r"\b(?:fy|cy) ?'?([0-9]{2})\b")
_BASE = re.compile(r"\b(?:from|between) (?:fy ?|fiscal (?:year )?)?((?:19|20)[0-9]{2}) (?:to|and|through)\b")
_NUMBERS = re.compile(r"(?<![\w.,])[0-9][0-9,]*(?:\.[0-9]+)?")
_POINTS = re.compile(r"\bbasis[ -]points?|\bbps\b")
_PERCENTAGE_POINTS = re.compile(r"\bpercentage[ -]points?|\bpercent[ -]points?|\bpp\b|\bppts?\b")
_WHICH_YEAR = re.compile(r"\b(?:which|what|in what|in which) (?:\w+ ){0,3}years?\b(?! (?:over|on|to)\b)|\bwhen\b")
_COUNTS = re.compile(
    r"\bhow many (?!percent|basis|points|times|dollars|million|billion|thousand|euros|days|months|years)"
)
_DOWN = re.compile(
    r"\b(?:decreas|declin|fall|fell|drop|shr[aiu]nk|reduc|narrow|worsen|loss|lost|lower|outflow|deficit|contract)\w*"
)
_UP = re.compile(
    r"\b(?:inflow|surplus|increas|ris|rose|grow|grew|gain|higher|inflow|chang|improv|exceed|widen|expan|earned)\w*"
)
_LOSSES = re.compile(
    r"\bloss(?:es)? (?:ratio|provision|reserve|allowance)|\b(?:allowance|provision|"
    r"reserves?) for (?:\w+ ){0,2}loss(?:es)?"
)
_EITHER = re.compile(
    r"\((?:loss(?:es)?|decrease|decline|outflow|deficit)\)|\bor (?:loss|deficit|outflow)\b|/ ?\(?(?:loss|deficit)|"
    rf"\b(?:loss|deficit)(?:es)? ?/|{_LOSSES.pattern}"
)
_USED = re.compile(r"\bused (?:in|for|by)\b|\b(?:spend|spent) (?:on|for)\b")
_BOTH_WAYS = re.compile(
    r"\b(?:negative|minus|parenthes[ei]s|brackets)\b|\bsign\b|\b(?:provided|generated|from|or) ?\(?(?:by )?[/(]*used"
)
"""The question states how a decrease is written, or asks for an amount of either direction: only one sign is right."""
_LEFT_OUT = re.compile(
    r"\b(?:net of|excluding|exclusive of|after deducting|before deducting|after subtracting|other than|"
    r"except(?: for)?|apart from|without|ignoring) ([^,?.;()]{3,60})"
)
_ROSE = re.compile(r"\b(?:increas|ris|rose|grow|grew|gain|higher|improv|exceed|expand)\w*")
_SHARES = re.compile(r"\bshares\b|\bshare count\b|\bhow many .{0,40}\bstock\b")
_PER_SHARE = re.compile(r"\bper (?:\w+ ){0,2}share\b|\beps\b|\bprice|\bdividend|\bstock\b")
_COUNTED_SHARES = re.compile(
    r"^(?!.*(?:\bprice|\bvalue|\bcost|\bpaid\b|\bsp[ae]n[dt]|\bper\b|\bdollar|\bamount|\bproceeds)).*"
    r"(?:\bnumber of|\bshares outstanding|\b(?:basic|diluted) shares|\bhow many)"
)
_TIME_UNIT = re.compile(r"\b(?:in|how many|number of) (?:of the |\w+ )?(day|week|month|quarter|year)s\b|\b(day)s\b")
_TIME = re.compile(r"\b(?:how long|days?|months?|years?|weeks?|quarters?|period|duration|age|maturity|term|life)\b")
_DURATION = re.compile(
    r"\bhow long\b|\bhow many (?:\w+ )?(?:days|weeks|months|quarters|years)|\b(?:in|number of) (?:days|weeks|"
    r"months|years)\b"
    r"|\bperiod\b|\bcycle\b|\bmaturity\b|\bduration\b|\bage\b|\blife\b|\bterm\b|\bdays\b"
)
_SHARE = re.compile(
    r"\bpercent|\bper cent|%|\brates?\b|\bmargin|\bgrowth\b|\bratio\b|\bproportion\b|\bportion\b|\bwhat share\b"
    r"|\breturn on\b|\byield\b|\bcagr\b|\bshare of\b|\bfraction\b"
)
_AMOUNT = re.compile(
    r"\bhow much\b|\bamount\b|\b(?:in|of) (?:us |u\.s\. )?(?:thousand|million|billion|dollar)|\bvalue\b|\btotal\b"
    r"|\bchange in\b|\bdifference\b|\bwhat (?:was|were|is|are) (?:the )?(?:company's )?(?:net|gross|operating|"
    r"total|cash)\b"
)
_MONEY_WORDS = re.compile(
    r"(?<![a-z])(?:"
    + "|".join(sorted(map(re.escape, (w for w in CURRENCIES if len(w) > 2 or not w.isalpha())), key=len, reverse=True))
    + r")(?![a-z])"
)

_STAFF = re.compile(r"\b(?:headcount|workforce|staff|personnel|workers|people)\b")
_WORD = re.compile(r"[qh][1-4](?!\w)|[1-9][0-9]{0,2}-(?:year|yr|month|week|day|quarter)s?|[^\W\d_]+(?:['&][^\W\d_]+)*")
_RATIO_OF = re.compile(
    r"\bratio (?:of|between) ([^?]{1,120}?) (?:to|and) ([^?]{1,120}?)(?= (?:in|at|for|as of|during)\b|\?|\Z)"
    r"|\b([a-z]{1,30}(?:[ -][a-z]{1,30}){0,2})(?: to |-to-)([a-z-]{1,30}(?: [a-z]{1,30})?) (?:ratio|multiple)\b"
)
_OPERAND = re.compile(r"[a-z]+(?:&[a-z]+)?|[0-9]{4}")
_OF_BOTH = word_set(
    "the a an of its total company s to in at and average net year what is was were are ratio multiple company's"
)


@dataclass(frozen=True, slots=True)
class Question:
    """Facts about a question; the defaults are for an unknown question.

    Attributes:
        known: Whether the question is known.
        words: The words of the question.
        text: The question in lower case.
        scale: The unit of a bare truth: a scale, points, or none.
        years: The years that the question names.
        base_year: The first year of `from 2018 to 2019`, or "".
        numbers: The other numbers that the question names, as digits.
        asks_year: Whether the answer is a year.
        asks_how_many: Whether the question contains `how many`.
        counts: Whether the question asks how many things there are, so that the answer is a whole number.
        direction: 1 if the question asks whether something rose or is above, -1 for fell or below, 0 for neither or
            both.
        is_about_decline: Whether the question asks for the size of a decrease, so that `a decrease of 5` is 5.
        asks_time: Whether the question asks for a duration.
        asks_share: Whether the question asks for a percentage, a rate or a ratio.
        asks_ratio: Whether the question asks for a margin, a rate or a ratio, which may be called a percentage of
            something else.
        asks_amount: Whether the question asks for an amount, and not for a share.
        measures: The measures that the answer may have, such as shares, day and money.
        quantities: Quantities of financial statements that the question names.
        currencies: Codes of the currencies that the question names.
        divides: Words of the numerator and of the denominator, if the question names both.
        names_losses: Whether the question is about an allowance or a provision for losses, which is not negative.
        left_out: Words that occur only in what the question excludes, as in `net of closures`.
    """

    known: bool = False
    words: tuple[str, ...] = ()
    text: str = ""
    scale: Unit = NO_UNIT
    years: frozenset[str] = frozenset()
    base_year: str = ""
    numbers: frozenset[str] = frozenset()
    asks_year: bool = False
    asks_how_many: bool = False
    counts: bool = False
    direction: int = 0
    is_about_decline: bool = False
    asks_time: bool = False
    asks_share: bool = False
    asks_ratio: bool = False
    asks_amount: bool = False
    measures: frozenset[str] = field(default=frozenset())
    quantities: frozenset[str] = frozenset()
    currencies: frozenset[str] = frozenset()
    divides: tuple[frozenset[str], frozenset[str]] | None = None
    names_losses: bool = False
    left_out: frozenset[str] = frozenset()

    def counted(self, truth: Number) -> Number:
        """Returns the truth in the unit that the question names; unchanged if the truth has a unit itself.

        A truth that is written out (`77,000,000` for a question in millions) is unchanged, too.
        """
        if truth.unit is not NO_UNIT or self.scale is NO_UNIT:
            return truth
        if self.scale.kind is Kind.SCALE and abs(truth.mantissa) >= 10**7:
            return truth
        return Number(truth.mantissa, self.scale, truth.is_whole, truth.digits, truth.place)


def read_question(text: str) -> Question:
    """Reads a question; an empty question, or one longer than `LONGEST`, is unknown."""
    text = " ".join(text.lower().replace("’", "'").split()) if len(text) <= LONGEST else ""  # noqa: RUF001
    if not text:
        return Question()
    years = _YEARS.findall(text) + [f"20{short}" for short in _SHORT_YEARS.findall(text)]
    return Question(
        known=True,
        words=tuple(_WORD.findall(text)),
        text=text,
        scale=_scale(text),
        years=frozenset(years),
        base_year=base[1] if (base := _BASE.search(text)) else "",
        numbers=frozenset(found.replace(",", "") for found in _NUMBERS.findall(_YEARS.sub(" ", text))),
        asks_year=bool(_WHICH_YEAR.search(text)) and "how many" not in text,
        asks_how_many="how many" in text,
        counts=bool(_COUNTS.search(text)),
        direction=bool(_ROSE.search(text)) - bool(_DOWN.search(text)),
        is_about_decline=_asks_size_of_decline(text),
        asks_time=bool(_DURATION.search(text)),
        asks_share=bool(_SHARE.search(text)),
        asks_ratio=bool(re.search(r"\b(?:margin|rate|ratio|return|yield|turnover|payout)\b", text)),
        asks_amount=bool(_AMOUNT.search(text)) and not _SHARE.search(text),
        measures=_measures(text),
        quantities=quantities(text),
        currencies=frozenset(CURRENCIES[word] for word in _MONEY_WORDS.findall(text)),
        divides=_divides(text),
        names_losses=bool(_LOSSES.search(text)),
        left_out=_left_out(text),
    )


def _asks_size_of_decline(text: str) -> bool:
    """Returns whether the question asks how large a decrease is, so that either sign is allowed."""
    declines = _DOWN.search(_EITHER.sub(" ", text)) or _USED.search(text)
    return bool(declines) and not _UP.search(text) and not _BOTH_WAYS.search(text)


def _left_out(text: str) -> frozenset[str]:
    """Returns the words that occur only in what is excluded: `closures` of `stores added, net of closures`."""
    named = {word for part in _LEFT_OUT.findall(text) for word in _WORD.findall(part)}
    return frozenset(named - set(_WORD.findall(_LEFT_OUT.sub(" ", text))))


def operands(text: str) -> frozenset[str]:
    """Returns the words of a text in lower case that distinguish one operand of a ratio from the other."""
    return frozenset(word for word in _OPERAND.findall(text) if word not in _OF_BOTH)


def _divides(text: str) -> tuple[frozenset[str], frozenset[str]] | None:
    ratio = _RATIO_OF.search(text)
    if ratio is None:
        return None
    top, bottom = operands(ratio[1] or ratio[3]), operands(ratio[2] or ratio[4])
    return top - bottom, bottom - top


def _measures(text: str) -> frozenset[str]:
    """Returns the measures that an answer may have: those that the question names, and money unless it is a count."""
    measures = {name for name, words in (("shares", _SHARES), ("per share", _PER_SHARE)) if words.search(text)}
    measures |= {stem for stem in MEASURES - TIMES - {"shares"} if re.search(rf"(?<!per ){stem}", text)}
    measures |= {"employee"} if _STAFF.search(text) else set()
    named = {first or second for first, second in _TIME_UNIT.findall(text)}
    measures |= named or (TIMES if _TIME.search(text) else frozenset())
    is_count = "how many" in text or ("shares" in measures and _COUNTED_SHARES.search(text))
    if not is_count or _MONEY_WORDS.search(text):
        measures.add("money")
    return frozenset(measures if _COUNTS.search(text) or "in percent" in text else measures | {"times"})


def _scale(text: str) -> Unit:
    if _POINTS.search(text):
        return Unit(Kind.POINTS, Fraction(1, 10_000))
    if _PERCENTAGE_POINTS.search(text):
        return Unit(Kind.POINTS, Fraction(1, 100))
    match = _SCALE.search(text) or _SCALE_IN_BRACKETS.search(text)
    return Unit(Kind.SCALE, Fraction(SCALES[match[match.lastindex or 1]])) if match else NO_UNIT
