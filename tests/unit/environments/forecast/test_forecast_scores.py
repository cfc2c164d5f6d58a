from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from finqa_plugins.environments.forecast import strict_forecasts, versatile
from finqa_plugins.environments.forecast.config import Profile
from finqa_plugins.environments.forecast.forecast_prompt import QUESTION_TYPES
from finqa_plugins.environments.forecast.forecast_verdict import stated_answer, stated_confidence

LONG = "word " * 200
TYPES = [*QUESTION_TYPES, "", "a type that is unknown"]

PUBLISHED = [
    # type, answer, truth, score: the rules of the source one by one
    ("pure_forecast", "3.0%", "3.0%", 1.0),
    ("pure_forecast", "2.7%", "3%", math.exp(-0.5)),
    ("pure_forecast", "-3%", "3%", math.exp(-10)),
    ("pure_forecast", "in 5 days 3%", "3", 1.0),
    ("pure_forecast", "3", "3%", 1.0),
    ("pure_forecast", "0", "0.0", 1.0),
    ("pure_forecast", "0.1", "0", 0.0),
    ("pure_forecast", "I cannot predict it, 3%", "3%", 0.0),
    ("pure_forecast", "no number", "3%", 0.0),
    ("pure_forecast", "1,234.5", "$1,234.5", 1.0),
    ("pure_forecast", ".5", "5", 1.0),
    ("pure_forecast", "3-5%", "-5%", 1.0),
    ("pure_forecast", "uncertain, 3%", "3%", 1.0),
    ("pure_forecast", "unpredictable, 3%", "3%", 0.0),
    ("event_detection", "Yes, it will", "yes", 1.0),
    ("event_detection", "No", "yes", 0.0),
    ("event_detection", "I think yes", "yes", 1.0),
    ("event_detection", "that is unknown", "no", 1.0),
    ("event_detection", "I know it: yes", "yes", 0.0),
    ("multi_signal_reasoning", "no", "No", 1.0),
    ("multi_signal_reasoning", "Day 3", "day 3", 1.0),
    ("multi_signal_reasoning", "day 4", "Day 3", 0.7),
    ("multi_signal_reasoning", "Day 1", "Day 3", 0.3),
    ("multi_signal_reasoning", "Day 9", "Day 3", 0.0),
    ("multi_signal_reasoning", "one should sell", "scale out", 1.0),
    ("multi_signal_reasoning", "scale out", "scale in", 0.0),
    ("multi_signal_reasoning", "increase the position", "Scale in.", 1.0),
    ("multi_signal_reasoning", "yes", "scale in", 0.0),
    ("multi_signal_reasoning", "a breakout perhaps", "breakout confirmed", 0.5),
    ("macro_fundamental", "yes", "Yes", 0.7),
    ("macro_fundamental", "it goes up", "up", 0.7),
    ("macro_fundamental", "yes as revenue and so on and on and on", "yes", 0.85),
    ("macro_fundamental", f"yes {LONG} revenue and margin", "yes", 1.0),
    ("macro_fundamental", f"no {LONG} revenue and margin", "yes", 0.0),
    ("macro_fundamental", "it goes up", "it rises", 0.0),
    ("news_sentiment", "yes", "yes", 1.0),
    ("news_sentiment", "much volatility", "yes", 0.5),
    ("news_sentiment", "bullish", "positive", 0.5),
    ("news_sentiment", "bearish", "positive", 0.0),
    ("news_sentiment", "a rise, then a fall", "positive", 0.0),
    ("news_sentiment", "a rise, then a fall", "bearish", 0.5),
    ("analysis", "up, driven by demand; risk: rates; opportunity: Asia", "any", 0.6),
    ("analysis", "revenue, margin", "any", 0.1),
    ("analysis", "revenue, margin, debt", "any", 0.2),
    ("analysis", LONG, "any", 0.2),
    ("analysis", "word " * 100, "any", 0.1),
    ("analysis", "word " * 50, "any", 0.05),
    ("", "Same, a", "the same!", 1.0),
    ("", "the same", "The same", 1.0),
    ("", "has same in it", "the same", 0.5),
]


@pytest.mark.parametrize(("kind", "answer", "truth", "worth"), PUBLISHED)
def test_versatile_scores_as_published(kind: str, answer: str, truth: str, worth: float) -> None:
    assert versatile.score(answer, truth, kind) == pytest.approx(worth)


HOLES = [
    # type, answer, truth: what versatile pays for and strict does not
    ("event_detection", "notable", "no"),
    ("event_detection", "Not sure", "no"),
    ("event_detection", "november", "no"),
    ("event_detection", "yes or no", "yes"),
    ("event_detection", "Yes, maybe", "yes"),
    ("event_detection", "yesterday", "yes"),
    ("event_detection", "no. Well, yes", "no"),
    ("multi_signal_reasoning", "bullish breakout confirmed or not", "breakout confirmed"),
    ("multi_signal_reasoning", "Day 3 or day 4", "Day 3"),
    ("multi_signal_reasoning", "scale in, scale out or stay flat", "scale in"),
    ("multi_signal_reasoning", "do not scale in", "scale in"),
    ("macro_fundamental", "up or down", "up"),
    ("macro_fundamental", "not up", "up"),
    ("macro_fundamental", "it won\N{RIGHT SINGLE QUOTATION MARK}t go up", "up"),
    ("macro_fundamental", "a pupil of the group", "up"),
    ("macro_fundamental", "I know", "no"),
    ("news_sentiment", "volatility", "yes"),
    ("news_sentiment", "a higher risk", "positive"),
    ("news_sentiment", "not positive", "positive"),
    ("analysis", f"risk opportunity revenue because upside {LONG}", "Up. Demand is strong."),
    ("pure_forecast", "100 now, then 3%", "3%"),
    ("pure_forecast", "3% 4% 5%", "3%"),
    ("pure_forecast", "3 to 5", "3"),
    ("", "any word that may be in it: same", "the same"),
]


@pytest.mark.parametrize(("kind", "answer", "truth"), HOLES)
def test_strict_pays_for_no_hole_of_versatile(kind: str, answer: str, truth: str) -> None:
    assert versatile.score(answer, truth, kind) > 0
    assert strict_forecasts.score(answer, truth, kind) == 0


@pytest.mark.parametrize(
    ("kind", "answer", "truth", "worth"),
    [
        ("pure_forecast", "+2.70 %", "3%", math.exp(-0.5)),
        ("pure_forecast", "$1,234.50", "1234.5", 1.0),
        ("pure_forecast", "1234.5", "$1,234.50", 1.0),
        ("pure_forecast", "\N{MINUS SIGN}3%.", "-3.0%", 1.0),
        ("pure_forecast", "nan", "3%", 0.0),
        ("pure_forecast", "inf", "3%", 0.0),
        ("pure_forecast", "I cannot predict", "3%", 0.0),
        ("event_detection", "No. Demand will not fall.", "no", 1.0),
        ("multi_signal_reasoning", "on day 4", "Day 3", 0.7),
        ("multi_signal_reasoning", "Sell.", "scale out", 1.0),
        ("multi_signal_reasoning", "Scale-out", "scale out", 1.0),
        ("event_detection", "A merger.", "a merger", 1.0),
        ("event_detection", "yes", "a merger", 0.0),
        ("pure_forecast", "I can\N{RIGHT SINGLE QUOTATION MARK}t predict 3%", "3%", 0.0),
        ("macro_fundamental", "Downward", "down", 1.0),
        ("macro_fundamental", "yes", "yes", 1.0),
        ("news_sentiment", "bullish", "positive", 1.0),
        ("analysis", "The share rises. A decline is the risk.", "Up. Demand is strong.", 1.0),
        ("analysis", "The share falls. An increase is possible.", "Up. Demand is strong.", 0.0),
        ("analysis", "strong demand and nothing else here", "demand strong", 0.5),
        ("", "the same!", "The same", 1.0),
        ("", "\N{EURO SIGN}", "\N{EURO SIGN}", 1.0),
        ("", "\N{EURO SIGN}", "$", 0.0),
    ],
)
def test_strict_takes_one_meaning(kind: str, answer: str, truth: str, worth: float) -> None:
    assert strict_forecasts.score(answer, truth, kind) == pytest.approx(worth)


def test_truths_of_embedded_kinds_are_their_own_right_answers() -> None:
    for kind, truth in (("pure_forecast", "-0.5%"), ("analysis", "Up. The trend supports it."), ("", "?")):
        assert strict_forecasts.score(truth, truth, kind) == 1


@given(st.text(max_size=80) | st.from_regex(r"(yes|no|day \d|up|not| |\d|%|,|\.)+"), st.text(min_size=1, max_size=20))
@example("9" * 5_000, "9" * 5_000)
@example("1e999%", "1" + "0" * 400)
@example("Day " + "9" * 5_000, "Day 1")
@example("٣%", "٣")
def test_any_text_has_a_finite_score(answer: str, truth: str) -> None:
    for kind in TYPES:
        for score in (strict_forecasts.score, versatile.score):
            assert 0 <= score(answer, truth, kind) <= 1


@pytest.mark.parametrize(
    ("text", "lenient", "only"),
    [
        ("I say <answer> yes </answer>.", "yes", "yes"),
        ("<ANSWER>yes</Answer>", None, "yes"),
        ("<answer>no</answer> then <answer>yes</answer>", "yes", None),
        ("<think><answer>no</answer></think><answer>yes</answer>", "yes", "yes"),
        ("<answer></answer>", "", None),
        ("<answer> \n </answer>", "", None),
        ("<answer>yes", None, None),
        ("yes</answer>", None, None),
        ("<answer>no <answer>yes</answer>", "no <answer>yes", None),
        ("<answer>yes</answer> </answer>", "yes", None),
        ("yes", None, None),
        ("İ<answer>yes</answer>", "yes", "yes"),  # a letter that gets longer in lower case
    ],
)
def test_what_is_stated(text: str, lenient: str | None, only: str | None) -> None:
    stated: dict[Profile, str | None] = {"versatile": lenient, "strict": only}
    for profile, answer in stated.items():
        assert stated_answer(text, profile) == answer


@pytest.mark.parametrize(
    ("stated", "confidence"),
    [("0.8", 0.8), ("1", 1.0), ("0", 0.0), (".25", 0.25), ("80%", 0.8), ("100 %", 1.0)]
    + [(wrong, None) for wrong in ("80", "1.01", "101%", "-0.1", "nan", "inf", "high", "", "0.5 or 0.6", "1e-1", "٣")],
)
def test_confidences_are_numbers_from_0_to_1(stated: str, confidence: float | None) -> None:
    assert stated_confidence(f"<answer>yes</answer><confidence>{stated}</confidence>") == confidence


def test_of_several_confidences_none_counts() -> None:
    assert stated_confidence("<confidence>0.1</confidence><confidence>0.9</confidence>") is None
    assert stated_confidence("0.9") is None


@given(st.text(max_size=60) | st.from_regex(r"(</?answer>|</?confidence>|</?think>|0|\.|5|%)+"))
def test_any_reply_is_read(text: str) -> None:
    confidence = stated_confidence(text)
    assert confidence is None or 0 <= confidence <= 1
    assert stated_answer(text, "strict") != ""
