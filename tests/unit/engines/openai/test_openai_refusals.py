from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.engines._http.http_client import Pace
from finqa_plugins.engines._http.refusals import Meaning, read_refusal, retry_after_s

NOW = datetime(2026, 1, 1, tzinfo=UTC)

SAID = [
    # status, facts of the error, meaning, room; worded as OpenAI, vLLM, SGLang, llama.cpp, Ollama and others word them
    (401, {"message": "Incorrect API key provided: sk-a***z.", "code": "invalid_api_key"}, Meaning.KEY, None),
    (403, {"message": "Project has no access to model `m`", "code": "model_not_found"}, Meaning.KEY, None),
    (429, {"message": "Rate limit reached for m", "code": "rate_limit_exceeded"}, Meaning.LIMIT, None),
    (429, {"message": "You exceeded your current quota", "code": "insufficient_quota"}, Meaning.QUOTA, None),
    (402, {"message": "Insufficient credits"}, Meaning.QUOTA, None),
    (404, {"message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}, Meaning.MODEL, None),
    (404, {"message": 'model "m" not found, try pulling it first'}, Meaning.MODEL, None),
    (400, {"message": "m is not a valid model ID"}, Meaning.MODEL, None),
    (404, {"message": "Not Found"}, Meaning.ADDRESS, None),
    (307, {"message": ""}, Meaning.ADDRESS, None),
    (503, {"message": "Loading model", "type": "unavailable_error", "code": 503}, Meaning.PASSING, None),
    (529, {"message": "Overloaded"}, Meaning.PASSING, None),
    (200, {"message": "upstream died", "code": 502}, Meaning.PASSING, None),
    (400, {"message": '"auto" tool choice requires --enable-auto-tool-choice'}, Meaning.TOOLS, None),
    (400, {"message": "registry.ollama.ai/library/m does not support tools"}, Meaning.TOOLS, None),
    (
        400,
        {"message": "Unsupported parameter: 'max_tokens'", "param": "max_tokens", "code": "unsupported_parameter"},
        Meaning.FIELD,
        None,
    ),
    (422, {"message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"]}]}}, Meaning.FIELD, None),
    (400, {"message": "maximum context length exceeded", "code": "context_length_exceeded"}, Meaning.CONTEXT, None),
    (
        400,
        {"message": "This model's maximum context length is 6048 tokens. However, you requested 6616 tokens "
         "(568 in the messages, 6048 in the completion)."},
        Meaning.CONTEXT,
        5480,
    ),
    (
        400,
        {"message": "'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context length is "
         "512 tokens and your request has 100 input tokens (500 > 512 - 100)."},
        Meaning.CONTEXT,
        412,
    ),
    (
        400,
        {"message": "This model's maximum context length is 4097 tokens. However, your messages resulted in 6164 "
         "tokens. Please reduce the length of the messages."},
        Meaning.CONTEXT,
        -2067,
    ),
    (
        400,
        {"message": "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a "
         "total of 9000 tokens: 8900 tokens from the input messages and 100 tokens for the completion."},
        Meaning.CONTEXT,
        -708,
    ),
    (
        500,
        {"message": "the request exceeds the available context size, try increasing it", "code": 500,
         "type": "exceed_context_size_error", "n_prompt_tokens": 1407, "n_ctx": 256},
        Meaning.CONTEXT,
        -1151,
    ),
    (400, {"message": "prompt is too long: 213462 tokens > 200000 maximum"}, Meaning.CONTEXT, None),
    (
        400,
        {"message": "You passed 4000 input tokens and requested 100 output tokens. However, the model's context length "
         "is only 4096 tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=4000)"},
        Meaning.CONTEXT,
        96,
    ),
    (400, {"message": "The decoder prompt (length 50) is longer than the maximum model length of 40."},
     Meaning.CONTEXT, None),
    (400, {"message": "Input length (40 tokens) exceeds the maximum allowed length (32 tokens)."},
     Meaning.CONTEXT, None),
    (400, {"message": "input length and `max_tokens` exceed context limit: 199 + 8 > 200"}, Meaning.CONTEXT, 1),
    (400, {"message": "The input token count (12) exceeds the maximum number of tokens allowed (10)."},
     Meaning.CONTEXT, None),
    (400, {"message": "The number of tokens to keep from the initial prompt is greater than the context length."},
     Meaning.CONTEXT, None),
    (400, {"message": "API key not valid. Please pass a valid API key."}, Meaning.KEY, None),
    (403, {"message": "m requires moderation and your input was flagged"}, Meaning.OTHER, None),
    (400, {"message": "Unknown parameter: 'top_k'.", "param": "top_k", "code": "unknown_parameter"},
     Meaning.FIELD, None),
    (400, {"message": "the messages are strange"}, Meaning.OTHER, None),
]  # fmt: skip


@pytest.mark.parametrize(("status", "facts", "meaning", "room"), SAID)
def test_what_servers_mean(status: int, facts: dict[str, object], meaning: Meaning, room: int | None) -> None:
    refusal = read_refusal(status, {}, "", {"error": facts})
    assert (refusal.meaning, refusal.room) == (meaning, room)
    bare = read_refusal(status, {}, "", facts)  # as vLLM sent it before 0.10
    assert bare.meaning is meaning


def test_the_field_is_named() -> None:
    facts = {"message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "input": 1}]}}
    assert read_refusal(422, {}, "", facts).field == "seed"


def test_words_of_a_server_are_printable() -> None:
    refusal = read_refusal(400, {}, "", {"error": {"message": "no\x1b[2J\x00\ud800 way", "param": "a\nb"}})
    assert refusal.text == "no [2J way" and refusal.field == "a b"


def test_a_page_of_a_proxy_becomes_one_line() -> None:
    page = "<html>\n<h1>502   Bad Gateway</h1>" + "x" * 9000
    refusal = read_refusal(502, {}, page, None)
    assert refusal.meaning is Meaning.PASSING
    assert refusal.text.startswith("502 Bad Gateway") and len(refusal.text) <= 400


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, 30.0),
        ({"retry-after": "Wed, 31 Dec 2025 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Thu, 01 Jan 99999999999999999999 00:00:30 GMT"}, None),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:30 +99999999999999999999"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_waits_that_servers_ask_for(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, NOW) == seconds


@given(
    st.integers(100, 599),
    st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.text()),
    st.text(),
    st.none() | st.dictionaries(
        st.sampled_from(["error", "message", "code", "type", "param", "detail", "n_ctx", "n_prompt_tokens"]),
        st.none() | st.text() | st.integers() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()),
    ),
)  # fmt: skip
def test_any_refusal_has_a_meaning(
    status: int, headers: dict[str, str], text: str, document: dict[str, object] | None
) -> None:
    refusal = read_refusal(status, headers, text, document, NOW)
    assert isinstance(refusal.meaning, Meaning) and "\n" not in refusal.text and len(refusal.text) <= 400
    assert refusal.retry_after_s is None or refusal.retry_after_s >= 0


@given(st.integers(1, 600), st.lists(st.tuples(st.floats(0, 5), st.integers(1, 20)), max_size=60))
def test_no_minute_holds_more_than_the_limit(per_minute: int, arrivals: list[tuple[float, int]]) -> None:
    now = 0.0
    pace = Pace(per_minute, now=lambda: now)
    begun: list[tuple[float, int]] = []
    for gap, units in arrivals:
        now += gap
        begun.append((now + pace.reserve(units), units))
    for first, (start, _) in enumerate(begun):
        inside = [units for at, units in begun[first:] if at < start + 60 - 1e-6]
        assert sum(inside[:-1]) <= per_minute  # the last one counts from its start on


def test_a_reservation_is_made_good() -> None:
    pace = Pace(60, now=lambda: 0.0)
    assert pace.reserve(10) == 0.0
    pace.correct(-8)
    assert pace.reserve(1) == pytest.approx(2.0)
    assert Pace(None, now=lambda: 0.0).reserve(10**9) == 0.0
