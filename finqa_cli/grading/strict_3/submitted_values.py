"""Reads an answer as one number, yes or no, date, quarter or name, or as a list of these with labels."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from finqa_cli.grading.closeness import is_within
from finqa_cli.grading.items import MOST_ITEMS
from finqa_cli.grading.strict_3.amounts import MULTIPLES, Amount, Found, currencies, find_amounts, without_brackets
from finqa_cli.grading.strict_3.wrapping import UnreadableError, bare, json_values, without_boxes

LONGEST_NAME = 8
"""Words of a name."""


def _list(words: str) -> list[str]:
    return words.split()


_MONTHS = _list("january february march april may june july august september october november december")
_MONTH_NUMBER = {month[:size]: place for place, month in enumerate(_MONTHS, start=1) for size in (3, len(month))}
_MONTH_NUMBER["sept"] = 9
_MONTH = "|".join(sorted(_MONTH_NUMBER, key=len, reverse=True))
_DATES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<month>{_MONTH})\.? (?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?,? (?P<year>[0-9]{{4}})",
        rf"(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?[ -](?P<month>{_MONTH})\.?,?[ -](?P<year>[0-9]{{4}})",
        rf"(?P<month>{_MONTH})\.?,? (?P<year>[0-9]{{4}})",
        r"(?P<year>[0-9]{4})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})",
        r"(?P<first>[0-9]{1,2})[/.](?P<second>[0-9]{1,2})[/.](?P<year>[0-9]{4})",
    )
)
_ORDINAL = {"first": 1, "second": 2, "third": 3, "fourth": 4, "1st": 1, "2nd": 2, "3rd": 3, "4th": 4}
_QUARTERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"q ?(?P<number>[1-4])(?:,? ?(?:of |fy ?)?(?P<year>(?:20|19)?[0-9]{2}))?",
        r"(?P<number>[1-4]) ?q(?: ?(?:fy ?)?(?P<year>(?:20|19)?[0-9]{2}))?",
        r"(?P<year>(?:20|19)[0-9]{2}) ?q(?P<number>[1-4])",
        rf"(?:the )?(?P<ordinal>{'|'.join(_ORDINAL)}) (?:fiscal )?quarter(?:,? (?:of |fiscal )*(?P<year>[0-9]{{4}}))?",
    )
)
_YES_OR_NO = re.compile(r"(yes|no|true|false)(?:(?: ?- |[,;:] | because )(.*))?", re.DOTALL)
_YEAR_PREFIX = re.compile(r"(?:fy|fiscal year|fiscal|the year|year) ?(?=(?:19|20)[0-9]{2}\Z)")
_YEARS = re.compile(r"(?<![0-9.,])(?:fy ?)?((?:19|20)[0-9]{2})(?![0-9.,]?[0-9])")
_WORD = re.compile(r"[a-z0-9&$%][a-z0-9&'.%/-]*")
_VERBS = frozenset(_list("was is were are had has have"))
_FUNCTION = _VERBS | set(_list("the a an of in for at to and by on as its it from with s"))
_LEGAL_FORMS = frozenset(
    _list("inc incorporated corp corporation co company ltd limited llp llc plc lp ag sa nv se gmbh")
)
_UNDECIDED = frozenset(_list("not no never nor or either neither than between about over under without except yes"))
_DIRECTION = re.compile(
    r"decreas|declin|drop|fell|fall|loss|lower|less|down|minus|negative|reduc|increas|rose|grew|used"
)
_COMPARED = re.compile(rf"{_DIRECTION.pattern}|high|above|below|exceed|great|more|bigg|large|small|improv|wors")
_BETWEEN_ITEMS = re.compile(
    rf"[;\n]|,(?![0-9]{{3}}(?![0-9]))(?! ?(?i:{'|'.join(sorted(_LEGAL_FORMS))})\b)(?: and\b)?|\band\b(?= ?[-+$(.0-9])"
)
_FISCAL = re.compile(r"\bfy ?'?(?=[0-9]{2}\b)", re.IGNORECASE)
_FISCAL_YEAR = re.compile(r"\bfy ?(?=(?:19|20)[0-9]{2}\b)", re.IGNORECASE)
_ABOUT = re.compile(r"(?:[~≈]|\b(?:approximately|approx\.?|about|roughly)) ?(?=[-$€£]?[0-9])")
_NOTATION = re.compile(r" ?[(=] ?")
_SHORT_YEAR = re.compile(r"(?:fy ?)?'?([0-9]{2})")
_OTHER_SIGNS = re.compile(r"[^\w ,.'\"():&$%/=-]|_")
_LABEL = re.compile(r"([^:=]{1,80}?) ?(?:[:=]|->| - ) ?(?=\S)")


@dataclass(frozen=True, slots=True)
class Word:
    """A value that is not a number.

    Attributes:
        kind: `yes or no`, `date`, `quarter` or `name`.
        text: Its normal form, by which two values are compared.
    """

    kind: str
    text: str


Value = Amount | Word


@dataclass(frozen=True, slots=True)
class Labelled:
    """A value of a list with its year or name; the label is empty if it has none."""

    key: str
    value: Value

    @property
    def is_of_years(self) -> bool:
        """Whether the label is a year."""
        return bool(re.fullmatch(r"(?:19|20)[0-9]{2}", self.key))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a question says, for the words that an answer may repeat.

    Attributes:
        text: The question in lower case.
        words: Its words.
        common: Its words that are written in lower case there, so that they are not names.
        currencies: Codes of the currencies that it names.
    """

    text: str
    words: frozenset[str]
    common: frozenset[str]
    currencies: frozenset[str]

    @classmethod
    def of(cls, question: str) -> Asked:
        """Read a question."""
        text = question.lower()
        words = _words(text)
        return cls(text, words, frozenset(word for word in words if word in question), currencies(text))

    def repeats(self, text: str) -> bool:
        """Whether a text contains only words of the question, and none that changes or leaves open what is said."""
        if _OTHER_SIGNS.search(text) or _DIRECTION.search(text):
            return False
        known = self.words | _FUNCTION | ({"%"} if "percent" in self.text else frozenset())
        return all(word not in _UNDECIDED and (word in known or f"{word}s" in known) for word in _words(text.lower()))

    def adds_nothing(self, word: str) -> bool:
        """Whether a word beside a name is one of the question that is not itself a name."""
        word = word.strip(".,:'\"").lower()
        return word in self.common or f"{word}s" in self.common or word in _FUNCTION

    def counts(self, counted: str) -> bool:
        """Whether the question names what an answer counts, such as shares or days; a multiple needs no name."""
        word = counted.removeprefix("per ").removeprefix("a ")
        return not word or counted in MULTIPLES or bool({word, f"{word}s", word.removesuffix("s")} & self.words)


def _words(text: str) -> frozenset[str]:
    words = (word.strip("'.-/").removesuffix("'s") for word in _WORD.findall(text))
    return frozenset(word[2:] if word[:2] == "fy" and word[2:].isdigit() else word for word in words)


def read_word(text: str) -> Word | None:
    """Returns the yes or no, date or quarter that a text is; None for another text."""
    text = text.lower().strip().rstrip(".!")
    if match := _YES_OR_NO.fullmatch(text):
        reason = match[2] or ""
        if re.search(r"[0-9,;?]|\b(?:yes|no|not|or|but|however|never)\b|n't\b", reason) or _COMPARED.search(reason):
            raise UnreadableError("the reason after yes or no contains a second value, a comparison or a negation")
        return Word("yes or no", {"true": "yes", "false": "no"}.get(match[1], match[1]))
    for pattern in _DATES:
        if match := pattern.fullmatch(text):
            return Word("date", _date(match.groupdict()))
    for pattern in _QUARTERS:
        if match := pattern.fullmatch(text):
            parts = match.groupdict()
            number = parts.get("number") or _ORDINAL[parts["ordinal"]]
            year = parts.get("year") or ""
            return Word("quarter", f"q{number} {'20' if len(year) == 2 else ''}{year}".strip())
    return None


def _date(parts: dict[str, str | None]) -> str:
    year, day = parts["year"], int(parts.get("day") or 0)
    month = parts.get("month") or ""
    if first := parts.get("first"):
        one, two = int(first), int(parts["second"] or 0)
        if min(one, two) <= 12 and one != two and max(one, two) <= 12:
            raise UnreadableError("day and month of the date could be exchanged; write it as 2023-12-31")
        day, month = (one, str(two)) if one > 12 else (two, str(one))
    number = _MONTH_NUMBER.get(month) or int(month)
    return f"{year}-{number:02}-{day:02}" if day else f"{year}-{number:02}"


def read_amount(text: str, asked: Asked) -> Amount:
    """Returns the one number of a text, which may repeat words of the question around it.

    Raises:
        UnreadableError: There is none or more than one, or other words stand beside it.
    """
    plain = without_brackets(_YEAR_PREFIX.sub("", " ".join(text.lower().split())))
    plain = _ABOUT.sub("", _FISCAL.sub("20", plain))
    found = find_amounts(plain)
    if len(found) > 1 and asked.text:  # numbers of the question, such as its years, are not candidates
        own = {re.sub(r"[^0-9.]", "", each) for each in re.findall(r"[0-9][0-9,.]*", asked.text)}
        others = [each for each in found if plain[each.start : each.end].strip(" ,.()") not in own]
        found = others or found
    if len(found) == 2 and _NOTATION.fullmatch(plain[found[0].end : found[1].start]):
        first, second = (each.amount.number for each in found)
        if is_within(first, first.unit.factor, second) and is_within(second, second.unit.factor, first):
            found = [Found(found[0].amount, found[0].start, found[1].end + plain[found[1].end :].startswith(")"))]
    if len(found) != 1:
        raise UnreadableError("it is not one number" if not found else "it has more than one number")
    ((start, end), amount) = (found[0].start, found[0].end), found[0].amount
    before, after = plain[:start], plain[end:]
    if any(re.search(r"[0-9]", part) and not re.search(r"[a-z]", part) for part in (before, after)):
        raise UnreadableError("it has more than one number")
    if "\n" in text.strip() or re.search(r"[;?!]|\.(?=.)|[-+/(] ?\Z", before) or re.match(r" ?[-+/)]", after):
        raise UnreadableError("there are other signs next to the number")
    if not (asked.repeats(before) and asked.repeats(after)) or re.search(r"[;?!]|\.(?=.)", after):
        raise UnreadableError("there are other words next to the number")
    if not asked.counts(amount.counted) or (amount.counted in MULTIPLES and after.strip(" .")):
        raise UnreadableError(f"the question does not ask for {amount.counted}")
    return amount


def read_name(text: str, asked: Asked) -> Word:
    """Returns the name that a text is, in its normal form; words of the question around it are left out.

    Raises:
        UnreadableError: The text is longer than a name, or leaves open which one is meant.
    """
    if "\n" in text.strip():
        raise UnreadableError("it has several lines")
    label, colon, rest = text.partition(": ")
    text = rest if colon and asked.repeats(label) else text
    text = " ".join(text.split()).strip(" \"'`").rstrip(".")
    words = text.split(" ")
    if re.search(r"[?!;:<>|~=\\{}\[\]()]|\. |,(?: [^ ]+){3}|\w{3}/\w{3}", text):
        raise UnreadableError("it is not one name")
    while len(words) > 1 and asked.adds_nothing(words[0]):
        words = words[1:]
    while len(words) > 1 and asked.adds_nothing(words[-1]):
        words = words[:-1]
    if len(words) > LONGEST_NAME or {word.lower().strip(",") for word in words} & (_UNDECIDED | _VERBS):
        raise UnreadableError(f"it is not one name of at most {LONGEST_NAME} words")
    return Word("name", normal_name(text))


def normal_name(text: str) -> str:
    """Returns a name for comparison: lower case, without `the` before it, its legal form, accents and punctuation."""
    text = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    text = re.sub(r"\.(?![0-9])|'", "", text.casefold().replace("&", " and "))
    words = re.sub(r"[^\w%$.+]+|_", " ", text).split()
    while len(words) > 1 and words[-1] in _LEGAL_FORMS:
        words.pop()
    return " ".join(words[1:] if words[:1] == ["the"] and len(words) > 1 else words)


def is_name(given: str, expected: str, asked: Asked) -> bool:
    """Whether a name in normal form is the expected one, words of the question beside it, or its initials."""
    initials = "".join(word[0] for word in _content(expected))
    if given == expected or "".join(_content(given)) == initials != initials[:1]:
        return True
    before, found, after = f" {given} ".partition(f" {expected} ")
    if not found or (given in asked.text and given != expected):  # another choice that the question offers
        return False
    return all(asked.adds_nothing(word) for word in (before + after).split())


def _content(name: str) -> list[str]:
    return [word for word in name.split() if word not in _FUNCTION]


def read_parts(answer: str) -> list[tuple[str, str]]:
    """Returns label and text of each value of an answer; one without a label if it is not a list.

    Raises:
        UnreadableError: See `bare` and `json_values`, or there are too many values.
    """
    text = bare(without_boxes(answer))
    parts = json_values(text)
    if parts is None:
        parts = [_labelled(part) for part in _BETWEEN_ITEMS.split(text, maxsplit=MOST_ITEMS) if part.strip(" .")]
    if not parts or len(parts) > MOST_ITEMS:
        raise UnreadableError("it is empty" if not parts else f"it has more than {MOST_ITEMS} values")
    return parts


def _labelled(part: str) -> tuple[str, str]:
    part = part.strip(" .,*-") if not re.match(r" *-? ?[$€£]?[0-9.]", part) else part.strip(" ,")
    if match := _LABEL.match(part):
        return match[1].strip(" *\"'"), part[match.end() :].strip(" *\"'")
    return "", part


def read_list(answer: str, asked: Asked, *, numbers: bool, names: bool) -> list[Labelled]:
    """Returns the values of a list; `numbers` and `names` say what they are, and both that they are mixed.

    Raises:
        UnreadableError: One of them is not one value, or has a label that is neither a year nor a name.
    """
    found = []
    for label, text in read_parts(answer):
        key, value = _key_of(label, text, asked) if not names or label else ("", text)
        found.append(Labelled(key, read_word(value) or _number_or_name(value, asked, numbers=numbers, names=names)))
    return found


def _number_or_name(text: str, asked: Asked, *, numbers: bool, names: bool) -> Value:
    if not numbers:
        return read_name(text, asked)
    try:
        return read_amount(text, asked)
    except UnreadableError:
        if names:
            return read_name(text, asked)
        raise


def _key_of(label: str, text: str, asked: Asked) -> tuple[str, str]:
    """Returns the label of a value, and its text without it. It depends on answer and question, not on the truth."""
    if short := _SHORT_YEAR.fullmatch(label.lower()):
        return f"20{short[1]}", text
    text = _FISCAL_YEAR.sub("", text if label else _FISCAL.sub("20", text))
    years = set(_YEARS.findall(label.lower() or text.lower()))
    if len(years) == 1 and (label or len(find_amounts(text.lower())) > 1):
        if label and not asked.repeats(_YEARS.sub(" ", label.lower())):
            raise UnreadableError("beside the year of a value stand words that the question does not have")
        return years.pop(), text if label else _YEARS.sub(" ", text)
    if label:
        return label_of(label, asked), text
    plain = without_brackets(text.lower())
    amounts = find_amounts(plain)
    if len(amounts) != 1:
        return "", text
    before, after = text[: amounts[0].start], text[amounts[0].end :]
    if len(plain) != len(text) or not (beside := _names(f"{before} {after}", asked)):
        return "", text
    return label_of(" ".join(beside), asked), text[amounts[0].start : amounts[0].end]


def label_of(text: str, asked: Asked) -> str:
    """Returns a label for comparison: without words that the question has in lower case, if others are left.

    Raises:
        UnreadableError: It is not a name.
    """
    words = " ".join(_names(text, asked)) or text
    return read_name(words, asked).text


def _names(text: str, asked: Asked) -> list[str]:
    return [word for word in text.split() if word.strip(".,:'\"") and not asked.adds_nothing(word)]
