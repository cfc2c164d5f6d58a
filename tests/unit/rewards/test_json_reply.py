from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from finqa_cli.grading.answers import FIELDS, Reply, parse_reply

STEPS = [
    {"operation": "table_max", "arguments": ["net income"], "result": 12},
    {"operation": "divide", "arguments": ["#0", 1.5], "result": 8},
]


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ('{"answer": 12.5}', Reply(answer=12.5)),
        (' {"answer": " $12.5 "} \n', Reply(answer="$12.5")),
        (
            '{"answer": "yes", "program": " add(1, 2) ", "reasoning": "r"}',
            Reply(answer="yes", program="add(1, 2)", reasoning="r"),
        ),
        ('```json\n{"answer": 1}\n```', Reply(answer=1)),
        ('```JSON {"answer": 1}```', Reply(answer=1)),
        ('```\n{"answer": 1}\n```', Reply(answer=1)),
        ('First ```json\n{"answer": 1}\n``` then\n```json\n{"answer": 2}\n```\nDone.', Reply(answer=2)),
        ('{"answer": "```"}', Reply(answer="```")),
        ('<think>{"answer": 1}</think>\n\n{"answer": 2}', Reply(answer=2)),
        (
            json.dumps({"answer": 8, "program": STEPS}),
            Reply(answer=8, program="table_max(net income, none), divide(#0, 1.5)"),
        ),
        ('{"answer": 1, "program": []}', Reply(answer=1)),
    ],
)
def test_forms_that_are_read(text: str, reply: Reply) -> None:
    assert parse_reply(text) == reply


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("The answer is 12", "not JSON"),
        ('{"answer": 12} indeed', "not JSON"),
        ('{"answer": 12', "not JSON"),
        ('```json\n{"answer": 12}', "not closed"),
        ("[1, 2]", "is an array"),
        ("12", "is a number"),
        ('{"program": "add(1, 2)"}', "'answer' is missing"),
        ('{"answer": null}', "null"),
        ('{"answer": true}', "true or false"),
        ('{"answer": [1]}', "an array"),
        ('{"answer": 1, "confidence": 1}', "unknown key 'confidence'"),
        ('{"answer": 1, "answer": 2}', "stands twice"),
        ('{"answer": 1, "program": [{"operation": "add", "operation": "add"}]}', "stands twice"),
        ('{"answer": NaN}', "NaN"),
        ('{"answer": -Infinity}', "Infinity"),
        ('{"answer": 1e999}', "double"),
        (f'{{"answer": {"9" * 5000}}}', "double"),
        ('{"answer": "\\ud800"}', "Unicode"),
        ('{"answer": 1, "program": 3}', "'program' is a number"),
        ('{"answer": 1, "program": [3]}', "step 0"),
        ('{"answer": 1, "program": [{"operation": "add"}]}', "needs 'arguments'"),
        ('{"answer": 1, "program": [{"operation": "add", "arguments": [1, 2, 3]}]}', "needs 'arguments'"),
        ('{"answer": 1, "program": [{"operation": "add", "arguments": [1, null]}]}', "neither a number nor a text"),
        ('{"answer": 1, "program": [{"arguments": [1, 2]}]}', "no 'operation'"),
        ('{"answer": 1, "program": [{"operation": "add", "arguments": [1], "why": 1}]}', "unknown key 'why'"),
        ('{"answer": 1, "reasoning": null}', "'reasoning' is null"),
        ("[" * 100_000, "too deeply nested"),
    ],
)
def test_what_has_not_the_form_says_why(text: str, said: str) -> None:
    reply = parse_reply(text)
    assert not reply.ok and said in reply.error
    assert reply.answer is None and reply.answer_text == "" and reply.program == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*FIELDS, "operation", "arguments", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.text() | JSON.map(json.dumps) | JSON.map(lambda value: f"so:\n```json\n{json.dumps(value)}\n```"))
@example('{"answer": "\\udfff"}')
@example("\ud800")
def test_anything_is_read_or_refused_and_can_be_stored(text: str) -> None:
    reply = parse_reply(text)
    assert reply.ok == (reply.answer is not None)
    for part in (reply.answer_text, reply.program, reply.reasoning, reply.error):
        part.encode()


@given(
    st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**300), 10**300),
    st.text(st.characters(exclude_categories=["Cs"])).map(str.strip),
)
def test_what_is_written_in_the_form_is_read_back(answer: float, reasoning: str) -> None:
    reply = parse_reply(json.dumps({"answer": answer, "reasoning": reasoning}, ensure_ascii=False))
    assert reply == Reply(answer=answer, reasoning=reasoning)


@pytest.mark.parametrize("text", ["```" * 1_000_001 + "{", '{"answer":' * 100_000, '"' + "\\" * 2_000_000, "{" * 10**6])
@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_hostile_text_takes_linear_time(text: str) -> None:
    assert not parse_reply(text).ok
