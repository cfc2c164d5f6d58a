from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.environments.code.code_environment import extract_program as program

PROMPT = 'def f(x):\n    """Double."""\n'
WHOLE = "def f(x):\n    return 2 * x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("    return 2 * x\n", f"{PROMPT}    return 2 * x\n"),
        ("    y = x\n\n    return y\nprint(f(1))\n", f"{PROMPT}    y = x\n\n    return y\n"),
        ("\n    return x\n   # three spaces\n", f"{PROMPT}\n    return x\n"),
        ("```python\n    return x\n```", f"{PROMPT}    return x\n"),
        (f"```python\n{WHOLE}\n```\nDone.", WHOLE),
        (WHOLE, WHOLE),
        ("f = lambda x: 2 * x", "f = lambda x: 2 * x"),
        (f"<think>return</think>{WHOLE}", WHOLE),
        ("The function doubles.", ""),
        ("", ""),
        ("def g(x):\n    return f(x)", ""),
    ],
)
def test_replies_that_go_on_or_begin_anew(text: str, expected: str) -> None:
    assert program(text, PROMPT, "f") == expected


def test_a_prompt_in_prose_is_not_continued() -> None:
    assert program("    return x", "Write f(x).", "f") == "    return x"


@given(st.text())
def test_any_text_gives_a_program_or_none(text: str) -> None:
    assert isinstance(program(text, PROMPT, "f"), str)
