"""Reads labels of values: quantities of financial statements, words that exclude each other, and foreign labels.

`SG&A: 642` does not answer a question about cost of goods sold, nor `quick ratio: 1.42` one about the current ratio. A
label is foreign if none of its words is related to the question, and its letters abbreviate no words of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from finqa_cli.grading.strict_2.number_words import DOWN, UP, starts_number, word_set

_QUANTITIES = {
    "revenue": r"revenues?|(?:net )?sales(?! (?:price|tax))|turnover|top line",
    "gross profit": r"gross profit|gross income",
    "cost of sales": r"cost of (?:goods sold|sales|revenue)|cogs",
    "operating income": r"operating (?:income|profit|earnings)|ebit",
    "net income": r"net (?:income|profit|earnings|loss)|earnings",
    "ebitda": r"ebitda",
    "assets": r"assets",
    "liabilities": r"liabilities",
    "equity": r"equity",
    "debt": r"debt|borrowings",
    "cash": r"cash",
    "capital expenditure": r"capital expenditures?|capex",
    "dividends": r"dividends?|payout",
    "inventory": r"inventor(?:y|ies)",
    "margin": r"margin",
    "tax": r"tax(?:es)?",
    "overhead": r"sg&a|selling, general|administrative",
    "research": r"r&d|research and development",
    "depreciation": r"depreciation|d&a",
    "goodwill": r"goodwill",
    "receivables": r"receivables?",
    "payables": r"payables?",
}
_QUANTITY = {name: re.compile(rf"(?<![a-z])(?:{words})(?![a-z])") for name, words in _QUANTITIES.items()}

_EXCLUSIVE = tuple(
    {member: re.compile(rf"(?<![\w-])(?:{member})(?![\w-])") for member in members.split(" / ")}
    for members in (
        r"basic / diluted",
        r"gross (?:sales|revenues?) / net (?:sales|revenues?)",
        r"current ratio|current assets (?:to|over|and|divided by) current liabilities / quick ratio|acid[- "
        r"]test(?: ratio)? / cash ratio / debt[- ]to[- ]equity(?: ratio)?",
        r"statutory / effective / marginal",
        r"gross (?:profit )?margin / operating margin / (?:net|profit|net profit) margin / ebitda margin",
        r"short[- ]term|current portion / long[- ]term|non-?current",
        r"domestic|u\.s\. / foreign|international|overseas",
        r"pre-?tax|before tax(?:es)? / after-?tax|net of tax",
        r"beginning|opening|start of / ending|closing|year[- ]end|end of",
        r"plan assets / (?:benefit )?obligations? / plan liabilities",
        r"common / preferred",
        r"minimum|min|lowest|smallest|low / maximum|max|highest|largest|biggest|greatest|high / average|mean|median",
        r"assets / liabilities",
        r"full-time / part-time|contractors?",
        r"paid|payments?|spend|spent / received|receipts?",
        r"turnover / days",
        "january / february / march / april / may / june / july / august / september / october / november / december",
        r"average|mean / median / total|sum",
        r"return on (?:average )?(?:total )?assets|roaa? / return on (?:average )?(?:[a-z']+ )?equity|roa?e"
        r" / return on (?:average )?(?:invested )?capital|roic|roce",
        r"granted / exercised / forfeited|cancell?ed / vested / expired / outstanding / exercisable",
        r"purchase[sd]? / sales?|sold|disposals?",
        r"receivables? / payables?",
        r"income|revenues? / expenses?|costs?",
        r"inflows? / outflows?",
        r"book / market",
        r"opened / closed",
        r"issued / repurchase[sd]?|bought back",
        r"used / provided|generated",
        r"unrecogni[sz]ed / recogni[sz]ed",
        r"repurchased|bought back / outstanding / authorized",
        r"operating activities|operations / investing activities / financing activities",
        r"tax rate / interest rate|rate of interest / discount rate / exchange rate",
        r"stated|coupon|nominal / effective",
        r"payout / yield / margin / return on|roe|roa|roic",
        r"current assets / total assets",
        r"current liabilities / total liabilities",
        r"tax(?:es)? (?:expense|provision)|provision for (?:income )?tax(?:es)? / tax(?:es)? (?:paid|payable|"
        r"refund\w*|benefit|credits?)",
        r"gross debt|total debt / net debt",
        r"total assets / net assets",
        r"operating cash flow|cash flow from operations / free cash flow",
        r"budget|budgeted / actual",
        r"company-owned|company-operated / franchised?",
        r"purchase (?:commitments?|obligations?) / lease (?:commitments?|obligations?)",
    )
)
_ALONE = re.compile(
    r"(?<![\w-])(?:non-?[a-z]+|before (?:income )?tax(?:es)?|adjusted|pro[- ]forma|forecast\w*|projected|projection|"
    r"guidance|budget\w*|target\w*|"
    r"consensus|"
    r"in (?:the )?(?:us|u\.s\.|usa|united states)|us (?:revenues?|sales)|"
    r"unit (?:revenues?|sales)|in units|annuali[sz]ed|"
    r"quarterly|monthly|peers?|industry|competitors?|rivals?|sector|benchmark|q[1-4]|h[12]|"
    r"(?:first|second|third|fourth)[- ](?:quarter|half)|wrong|incorrect|other|another|old|outdated|unrelated)(?![\w-])"
)
"""Words of a label that show that its value is not the one asked for, unless the question has them, too."""

_GENERIC = word_set(
    "a an the of in at on for to by as is was were are be been being has had have it its this that these those "
    "and with "
    "from per i we you my our their his her he she they there here so then thus hence therefore now which who "
    "what when "
    "how will can did do does done just only about approximately approx roughly around nearly circa exactly some "
    "all each "
    "company companies firm corporation business group consolidated reported report reports according table "
    "tables filing "
    "filings statement statements data sheet balance note notes page annual form sec document documents context source "
    "answer answers ans result results final value values figure amount amounts number numbers total totals sum "
    "overall "
    "average mean median ratio percentage percent percentages rate rates growth change changes difference variance "
    "increase decrease rise fall decline gain margin share shares proportion portion fraction multiple quotient output "
    "solution conclusion verdict computed calculated calculation computation formula equation step thought "
    "response reply "
    "assistant model question query count counts metric quantity measure level year years fiscal fy cy period "
    "quarter month "
    "months end ended ending calendar january february march april may june july august september october "
    "november december "
    "million millions billion billions thousand thousands dollars dollar usd us eur euros get got gets obtain "
    "obtained find "
    "found find finds compute calculate returned returns gives yields give yield equals equal comes came come amounted "
    "amounts stood stands worked works out down up using based given after before rounded rounding approximate "
    "exact correct "
    "right required requested asked desired y x n p pct val res ret sure okay ok let see first next last finally "
    "item shows took take takes made make makes had reached hit posted recorded showed indicates indicated "
    "represents represented accounted accounts since because while with where there were into out only being "
    "went gone go goes come became become remained remains achieved delivered produced generated experienced saw "
    "sees stated states listed lists disclosed discloses provided provides shown given per cent yoy basis points "
    "point bps pp percentage turns times respectively annually yearly compounded overall good therefore compared "
    "versus vs against such times equity-holders also both together combined tool output observation action "
    "thought result returned value plus minus less over divided times multiplied net gross q a s t return "
    "return_value row rows column columns cell cells reads read entry says said"
)

_SAYING = word_set(
    "any ever holders than pre every represent position bottomed worsened averaged average supplemental supplementary "
    "information data disclosure effective beginning start worldwide globally outstanding numbered factor actual "
    "traded stock bank bank's insurer issuer retailer no more less most peaked peak occurred happened place "
    "averages during annum incurred recorded earned contributed generated carries carry bear bears bearing carried "
    "amounting totaling totaled totalling totalled equivalent corresponds corresponding implies implying meaning "
    "means according whole entire itself respective comprises comprised constituted constitutes computing dividing "
    "divide subtracting subtract taking adding summing looking look reading based listed noted see representing "
    "translate translates translating works thereby whose same follows unit units turned feet added rev recognized "
    "recognised realized realised booked held hold holds owes owed owned owns worth logged measured determined "
    "derived arrived ended ends finished stands sits lies remains kept keeps maintained experienced enjoyed "
    "witnessed attained reflects reflecting reflected showing indicating displayed presents presented summarized "
    "identified located extracted retrieved pulled taken queried driven owing attributable resulting primarily "
    "mainly largely mostly entirely i'll requested under hand schedule amounted amount's available "
    "aside together sized combined posting quoted cited appearing tallied worked produced produces producing brings "
    "brought bringing puts put approximated stood signified denotes denoted expressed equaled "
    "equalled equating equates sourced referenced footnote footnotes disclosures excerpt passage paragraph context "
    "caption heading labeled labelled titled registrant through me them ergo unitless dimensionless"
)
"""Words about how a value was obtained, or that there is one, which do not say what it is."""

_NEUTRAL = (
    _GENERIC
    | _SAYING
    | DOWN
    | UP
    | word_set(
        "oreq i.e. e.g. approx. vs. vs ca ca. circa p.a p.a. est boxed la el le les los die der das il lo o a "
        "respuesta réponse "
        "antwort resposta risposta final es est ist é è fue était war received between off per-cent yr q/q y/y "
        "yoy y-o-y"
    )
)
_LABEL_WORD = re.compile(r"[a-z]+(?:[&/'-][a-z]+)*")
_HEADED = re.compile(
    r"(?<![\w-])([a-z]+(?:[&/-][a-z]+)*)(?= (turnover|ratio|margin|growth|coverage|yield|rate|income|profit|"
    r"expense|assets|"
    r"liabilities|debt|flow|eps)(?![\w-]))"
)
"""The noun before a measure: `asset turnover` is not `inventory turnover`."""
_SHORT = re.compile(r"[^a-z]")
_SYNONYMS = tuple(
    word_set(line)
    for line in (
        "collection dso receivable receivables days",
        "capex capital expenditure expenditures spending spent purchases property plant equipment",
        "ocf cfo operations operating",
        "expected estimated projected anticipated forecast future",
        "employees headcount staff workforce workers people",
        "leverage debt equity",
        "debt borrowings borrowing indebtedness",
        "turnover revenue revenues sales top line top-line",
        "profit income earnings profitability loss",
        "repurchase repurchases repurchased buyback buybacks",
        "cogs cost sales goods",
        "shareholders stockholders equity",
        "locations stores shops outlets branches restaurants",
        "payout dividend dividends distribution distributions shareholders stockholders",
        "acquisitions acquisition deals transactions takeovers mergers",
        "directors members people persons individuals executives employees",
        "improved improvement expanded rose grew grown increase increased growth growing rise higher gained cagr",
        "decreased decrease declined decline dropped drop fell fallen reduction reduced lower shrank loss lost",
        "drawn borrowings borrowed borrowing outstanding",
        "add added adding additions new",
        "issuance issuances issue issues issued issuing",
        "spent spend paid pay payment payments cost expense expenses outlay cash",
        "effective etr tax taxes income",
        "earned eps earnings",
        "conversion ccc dio dpo inventory",
        "current liquidity quick",
        "coverage interest times",
        "due mature matures maturing maturities payable",
        "cash equivalents",
        "shares stock common",
        "comparable comp comps same-store same",
        "opex operating expenses",
        "due maturing mature notes carry carries carried",
        "maximum max highest largest greatest biggest most peak peaked top",
        "minimum min lowest smallest least fewest",
        "r&d research development",
        "sg&a selling general administrative",
        "d&a depreciation amortization",
        "pp&e ppe property plant equipment",
        "lease leases maturities minimum schedule",
        "audited auditor auditors audit independent registered public accounting accountant accountants firm",
        "provision tax taxes expense paid",
        "over exceeded exceeds exceed above surpassed",
        "repurchase repurchased repurchases bought back",
        "payout paid earnings income profit",
        "acquisition acquisitions acquired acquire acquiring businesses",
        "used use uses outflow outflows spent",
        "variance shortfall favorable unfavorable favourable unfavourable budget below above",
    )
)


def quantities(text: str) -> frozenset[str]:
    """Returns the quantities of financial statements that a text in lower case names; synonyms have one name."""
    return frozenset(name for name, words in _QUANTITY.items() if words.search(text))


_MEASURES = {
    "ratio": "ratio multiple coverage turnover",
    "margin": "margin",
    "growth": "growth cagr increase rise grew rose increased",
    "change": "change variance difference decrease decline fall",
    "total": "total sum altogether combined",
    "average": "average mean",
    "share": "percentage percent proportion portion share payout",
    "rate": "rate yield",
    "return": "return roe roa roic",
    "cycle": "cycle ccc",
}
_MEASURE = {word: name for name, words in _MEASURES.items() for word in words.split()}


def measures_named(words: Collection[str]) -> frozenset[str]:
    """Returns the computed measures that words name, which are in no statement: ratio, margin, growth and others."""
    return frozenset(_MEASURE[word] for word in words if word in _MEASURE)


def names_another_source(text: str, question: str) -> bool:
    """Returns whether words after a value say that it is a target, a peer's or a quarter's, unlike the question."""
    return any(match[0] not in question for match in _ALONE.finditer(text))


def contradicts(label: str, question: str) -> bool:
    """Returns whether a label has a word that excludes the one that the question has: `diluted` for `basic`.

    Args:
        label: Words around a value, in lower case.
        question: The question, in lower case.
    """
    if any(match[0] not in question for match in _ALONE.finditer(label)):
        return True
    asked_words = _LABEL_WORD.findall(question)
    for match in _HEADED.finditer(label):
        if match[2] in asked_words and match[1] not in _NEUTRAL and is_foreign([match[1]], asked_words):
            return True
    if _is_of_another_owner(label, question, asked_words):
        return True
    for group in _EXCLUSIVE:
        named = {member for member, words in group.items() if words.search(label)}
        if named:
            asked = {member for member, words in group.items() if words.search(question)}
            if asked and not named & asked:
                return True
    return False


_DESIGNATED = re.compile(
    r"(?<![\w-])(company|tranche|segment|plan|class|series|fund|division|product|region|bank|firm|unit|corp) "
    r"([a-z]|[0-9])(?![\w'-])"
)
_HEADS = word_set(
    "segment division region corp corporation company backlog commitments obligations plan bank unit subsidiary fund "
    "brand operating gross net product"
)
"""Nouns that directly follow the name of a segment or company."""


def _is_of_another_owner(label: str, question: str, asked: Sequence[str]) -> bool:
    """Returns whether a label has a name that is not in the question: `company a` for company b, `rail backlog`."""
    named = {match[1]: match[2] for match in _DESIGNATED.finditer(label)}
    wanted = {(match[1], match[2]) for match in _DESIGNATED.finditer(question)}
    nouns = {noun for noun, _ in wanted} | {"company"}
    if any((noun, mark) not in wanted and noun in nouns for noun, mark in named.items()):
        return True
    words = _LABEL_WORD.findall(label)
    return any(
        word in _HEADS
        and word in asked
        and before.removesuffix("'s") not in _NEUTRAL | _ATTRIBUTES
        and is_foreign([before.removesuffix("'s")], asked)
        for before, word in pairwise(words)
    )


_ATTRIBUTES = word_set(
    "outstanding annual aggregate remaining combined estimated relevant corresponding resulting implied parent holding "
    "lower higher year-end funded unfunded contractual future unfilled ending closing"
)


def is_foreign(label: Sequence[str], question: Collection[str], *, related: bool = True) -> bool:
    """Returns whether a label has words, and none of them is related to the question.

    Args:
        label: The words directly before a value, in lower case.
        question: The words of the question, in order.
        related: Whether synonyms and abbreviations count as related.
    """
    words = [word for one in label for word in re.split(r"[-_/ ]", one) if word]
    contents = [
        word for word in words if word.removesuffix("'s") not in _NEUTRAL and len(word) > 1 and not starts_number(word)
    ]
    if not contents or not question:
        return False
    asked = _vocabulary(tuple(question))
    if any(asked.is_related(word) if related else asked.has_stem(word) for word in words):
        return False
    return not related or not any(asked.abbreviates(_SHORT.sub("", one)) for one in label if 1 < len(one) <= 6)


def unaccounted(words: Sequence[str], question: Collection[str]) -> list[str]:
    """Returns the words that are neither common nor related to a word of the question, in their order.

    Args:
        words: The words of the clause that contains a value, in lower case.
        question: The words of the question, in order.
    """
    parts = [part for word in words for part in ([word] if word in question else _PARTS.split(word.removesuffix("'")))]
    initials = _vocabulary(tuple(question)).strong
    short = [word for word in words if _LETTERS.fullmatch(word) and word.replace("/", "") not in initials]
    return [*short, *(word for word in parts if is_foreign([word], question))]


_LETTERS = re.compile(r"([a-z])/(?!\1)[a-z]")


_PARTS = re.compile(r"[-/]")


def is_common(word: str) -> bool:
    """Returns whether a word is common: any answer may contain it, on any subject."""
    return word in _NEUTRAL


def is_related(words: Collection[str], question: Collection[str]) -> bool:
    """Returns whether one of the words is related to the question."""
    asked = _vocabulary(tuple(question))
    return any(asked.is_related(word) for word in words)


def covers(words: Collection[str], question: Collection[str]) -> bool:
    """Returns whether words name everything that a question asks for, so that their value is its answer.

    If the question has more than three content words, one of them may be missing.
    """
    if len(words) > _MOST_WORDS:
        return False
    asked = {word for word in question if len(word) > 1 and (word not in _NEUTRAL or word in _COMPUTED)}
    parts = {part for word in words for part in re.split(r"[-_/ ]", word)} | set(words)
    missing = [word for word in asked if word not in parts and not is_related(parts, (word,))]
    return bool(asked) and len(missing) <= (len(asked) > 3)


_COMPUTED = word_set(
    "ratio margin growth change increase decrease difference average sum turnover multiple return yield rate coverage"
)


_JOINING = word_set("a an the of to in on for and by at per")


_MOST_WORDS = 80
_STEM = 5


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The words of a question, prepared for comparisons with words of an answer.

    Attributes:
        words: All words; those with hyphens are split.
        stems: First letters of words with at least four letters.
        telling: Words that are not common, and their synonyms.
        telling_stems: First letters of the words of the question that are not common, without synonyms.
        initials: Initials of all words, in order.
        strong: Initials of all words except articles and prepositions, in order.
    """

    words: frozenset[str]
    stems: frozenset[str]
    telling: frozenset[str]
    telling_stems: frozenset[str]
    initials: str
    strong: str

    def has_stem(self, word: str) -> bool:
        return word in self.words or (len(word) > 3 and word[:_STEM] in self.stems)

    def is_related(self, word: str) -> bool:
        return word in self.telling or (len(word) > 3 and word[:_STEM] in self.telling_stems)

    def abbreviates(self, word: str) -> bool:
        return (len(word) > 1 and word in self.strong) or (len(word) > 2 and word in self.initials)


@lru_cache(maxsize=64)
def _vocabulary(question: tuple[str, ...]) -> _Vocabulary:
    asked = [word for one in question for word in re.split(r"[-_/]", one) if word]
    telling = {word for word in asked if word not in _GENERIC or word in _TELLING}
    synonyms = {word for same in _SYNONYMS if same & telling for word in same}
    return _Vocabulary(
        words=frozenset(asked),
        stems=frozenset(word[:_STEM] for word in asked if len(word) > 3),
        telling=frozenset(telling | synonyms),
        telling_stems=frozenset(word[:_STEM] for word in telling if len(word) > 3),
        initials="".join(word[0] for word in asked),
        strong="".join(word[0] for word in asked if word not in _JOINING),
    )


_TELLING = word_set(
    "over share shares growth margin change increase decrease rise fall decline gain return gross net ratio rate yield"
)
