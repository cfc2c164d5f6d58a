from __future__ import annotations

from typing import Any

import pytest
from fixtures.finqa_text_rows import TABLE, original, prepared
from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.environments._task_files.task_rows import RowError
from finqa_plugins.environments.finqa_text.text_environment import opening
from finqa_plugins.environments.finqa_text.text_rows import TextRow, read_row

WITHOUT = object()


def test_an_original_row_shows_text_table_and_question_in_this_order() -> None:
    row = read_row(original())
    assert (row.id, row.company, row.kind) == ("AAL/2018/page_1.pdf-1", "AAL", "subtract+divide")
    assert row.table == tuple(map(tuple, TABLE)) and row.truth == 0.2
    parts = ["this is page 1 . it begins .", "| net sales | $ 600 | 500 |", "it ends .", f"Question: {row.question}"]
    places = [row.text.index(part) for part in parts]
    assert places == sorted(places)


def test_joined_text_reads_as_the_same_page() -> None:
    listed = read_row(original())
    joined = read_row(original(pre_text="this is page 1 . it begins .", post_text="it ends ."))
    assert joined.text == listed.text


def test_the_truth_is_in_no_message() -> None:
    row = read_row(original(qa={"exe_ans": 87654.321, "program": "add(87654.32, 0.001)", "answer": "87,654.3"}))
    said = "".join(message.content for message in opening(row.text).messages)
    assert not [secret for secret in ("87654", "87,654", "add(87654.32, 0.001)") if secret in said]


def test_the_text_of_a_prepared_row_is_what_is_asked() -> None:
    row = read_row(prepared())
    assert row.text == "Context: page 1. Question: how much? Answer:" and row.question == "how much?"
    assert row.truth == 0.2 and row.table == ()


def test_a_prepared_row_may_carry_truth_table_and_facts_of_its_own() -> None:
    facts = {"question_type": "analysis", "uncertainty": 0.4}
    row = read_row(prepared(exe_ans="Yes", target_answer="yes indeed", table=TABLE, company="acme", extra_info=facts))
    assert (row.truth, row.company, row.extra) == ("yes", "acme", facts) and row.table == tuple(map(tuple, TABLE))


def test_rows_without_a_company_have_their_page_in_common() -> None:
    first, same = (read_row(original(1, id=name, filename=None, qa={"question": f"{name}?"})) for name in ("a", "b"))
    other = read_row(original(2, id="c", filename=None))
    assert first.company == same.company != other.company
    assert first.company.startswith("page ") and len(first.company) == len("page ") + 16
    text = first.text.replace("\n", " \n")
    assert read_row(prepared(id="d", input_text=text, question="a?")).company == first.company, "spacing does not count"
    assert read_row(original(id="MSFT/2018/page_1.pdf-1", filename=None)).company == "MSFT", "the id has the ticker"
    assert read_row(prepared(id="/1")).company.startswith("page ")
    assert read_row(original(id="a", filename="MSFT/2018/page_1.pdf")).company == "MSFT"


@pytest.mark.parametrize(
    ("written", "truth", "answer"),
    [(688.0, 688.0, "688"), (688, 688.0, "688"), (0.25, 0.25, "0.25"), ("no", "no", "no"), ("YES ", "yes", "yes")],
)
def test_truths_are_numbers_or_words(written: object, truth: object, answer: str) -> None:
    row = read_row(original(qa={"exe_ans": written}))
    assert row.truth == truth and str(row.answer) == answer


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("divide(1, 2)", "divide"),
        ("table_average(net sales, none)", "table_average"),
        ("add(1, 2), divide(#0, 3)", "add+divide"),
        ("add(1, 2), add(#0, 3), divide(#1, const_3)", "three or more steps"),
    ],
)
def test_the_kind_is_made_of_the_operations(program: str, kind: str) -> None:
    assert read_row(original(qa={"program": program})).kind == kind


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": WITHOUT}, "field 'id': must be a text"),
        ({"id": "  "}, "field 'id': must not be empty"),
        ({"filename": 3}, "field 'filename': must be a text"),
        ({"pre_text": WITHOUT}, "field 'pre_text': must be a text"),
        ({"post_text": ["one", None]}, "field 'post_text': must be a text"),
        ({"table": []}, "field 'table': must be a list of rows"),
        ({"table": [["a"], []]}, "field 'table': must be a list of rows"),
        ({"table": [["a", "b"], ["c"]]}, "field 'table': ragged: row 2 has 1 cells, the header has 2"),
        ({"table": [["a", 1]]}, "field 'table': must be a text"),
        ({"qa": {"question": None}}, "field 'qa.question': must be a text"),
        ({"qa": {"program": "a fifth"}}, "field 'qa.program': is not a program of FinQA: Character 0"),
        ({"qa": {"program": ""}}, "field 'qa.program': must not be empty"),
        ({"qa": {"exe_ans": None}}, "field 'qa.exe_ans': must be a number, yes or no"),
        ({"qa": {"exe_ans": True}}, "field 'qa.exe_ans': must be a number, yes or no"),
        ({"qa": {"exe_ans": "maybe"}}, "field 'qa.exe_ans': must be a number, yes or no"),
        ({"qa": {"exe_ans": float("nan")}}, "field 'qa.exe_ans': must be a finite number"),
        ({"qa": {"exe_ans": 10**400}}, "field 'qa.exe_ans': must be a finite number"),
        ({"qa": {"question": "half \ud800"}}, "field 'qa.question': is not valid Unicode"),
        ({"pre_text": "x" * 1_000_001}, "field 'pre_text': has 1000001 characters"),
        ({"extra_info": []}, "field 'extra_info': must be an object"),
    ],
)
def test_a_malformed_field_is_named_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    row = {name: value for name, value in original(**changes).items() if value is not WITHOUT}
    with pytest.raises(RowError) as caught:
        read_row(row)
    assert str(caught.value).startswith(reason)


def test_a_prepared_program_that_reads_a_table_needs_one() -> None:
    with pytest.raises(RowError, match="'table': is missing, and target_program reads it"):
        read_row(prepared(target_program="table_max(net sales, none)"))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_any_value_in_any_field_gives_a_row_or_a_reason(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from([original(), prepared()]))
    place: dict[str, Any] = data.draw(st.sampled_from([row, row.get("qa", row)]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(values)
    try:
        assert isinstance(read_row(data.draw(st.sampled_from([row, row, place]))), TextRow)
    except RowError as error:
        assert str(error)
