from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.environments.code.code_environment import extract_code

CODE = "def f(x):\n    return x"


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{CODE}\n```",
        f"Here:\n```python\n{CODE}\n```\nUse it so:\n```python\nf(1)\n```",
        f"```\nf(1)\n```\n```python\n{CODE}\n```",
        f"```py\r\n{CODE}\n```",
        f"```Python\n{CODE}",
        f"```\n{CODE}\n```",
        f"<code>\n{CODE}\n</code>",
        f"<code>{CODE}",
        CODE,
        f"\n{CODE}\n>>> f(1)\n... \n",
        f"<think>\n```python\nno = 1\n```\n</think>\n{CODE}",
        f"no = 1\n```python\nno\n```</think>\n```python\n{CODE}\n```",
    ],
)
def test_the_code_of_a_reply(text: str) -> None:
    assert extract_code(text) == CODE


def test_thoughts_without_end_hold_no_code() -> None:
    assert extract_code("<think>\n```python\nx = 1\n```") == ""


def test_indentation_of_a_body_is_kept() -> None:
    assert extract_code("    return x\n") == "    return x"


@given(st.text())
def test_any_text_gives_a_text(text: str) -> None:
    assert isinstance(extract_code(text), str)
