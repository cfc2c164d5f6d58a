from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_testing.daytona.dockerfile import BuildError, parse


def test_copy_env_and_workdir_are_understood() -> None:
    recipe = parse(
        "# syntax comment\n"
        "FROM python:3.12-slim@sha256:abc\n"
        "WORKDIR /opt\n"
        "WORKDIR finqa\n"
        "COPY --chown=finqa a.whl b.txt ./\n"
        "COPY snapshot snapshot\n"
        'COPY ["with space", "/data/with space"]\n'
        'ENV A=1 B="two words" \\\n'
        "    C=$A-${B}\n"
        "ENV OLD form of it\n"
        "RUN pip install \\\n"
        "    ./a.whl\n"
        'USER finqa\nENTRYPOINT ["sleep", "infinity"]\n'
    )
    copies = [(step.sources, step.target) for step in recipe.steps if step.sources]
    assert copies == [
        (("a.whl", "b.txt"), "/opt/finqa/"),
        (("snapshot",), "/opt/finqa/snapshot"),
        (("with space",), "/data/with space"),
    ]
    assert recipe.environment == {"A": "1", "B": "two words", "C": "-", "OLD": "form of it"}
    assert [step.command for step in recipe.steps if step.command] == ["pip install      ./a.whl"]


def test_variables_of_earlier_lines_are_replaced() -> None:
    assert parse("FROM x\nENV A=1\nENV B=$A/${A}/$NONE").environment == {"A": "1", "B": "1/1/"}


def test_stages_have_names_and_numbers_and_variables_of_their_own() -> None:
    recipe = parse("ARG B=x\nFROM $B AS Builder\nENV A=1\nWORKDIR /a\nFROM $B\nCOPY --from=builder /a/x y\nENV C=2")
    assert [step.stage for step in recipe.steps if step.stage] == ["builder", "1"]
    (copied,) = (step for step in recipe.steps if step.sources)
    assert (copied.origin, copied.sources, copied.target) == ("builder", ("/a/x",), "/y")
    assert recipe.environment == {"C": "2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("COPY a b", "no build stage"),
        ("FROM a\nCOPY only", "two arguments"),
        ("FROM a\nCOPY [broken", "parse error"),
        ("FROM a\nFETCH x", "unknown instruction: FETCH"),
        ("FROM a\nENV A='", "parse error"),
    ],
)
def test_what_cannot_be_built_is_said(text: str, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        parse(text)


@given(st.text(max_size=200))
def test_any_text_is_a_recipe_or_a_build_error(text: str) -> None:
    try:
        recipe = parse(f"FROM x\n{text}")
    except BuildError as error:
        assert str(error)
    else:
        assert all(step.target.startswith("/") for step in recipe.steps if step.sources)
