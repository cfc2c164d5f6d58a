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


FENCED = """def f():
    '''Example:
    ```python
    f()
    ```
    '''
    return "```"
"""
HELPER, USER = "import math\n\ndef half(x):\n    return x / 2", "def f(x):\n    return half(x)"


def blocks(*codes: str) -> str:
    return "\n\nThen:\n".join(f"```python\n{code}\n```" for code in codes)


def test_a_block_ends_where_its_code_ends() -> None:
    assert extract_code(f"Here:\n```python\n{FENCED}```\nDone.") == FENCED.rstrip()
    assert extract_code(f"{blocks(FENCED.rstrip(), 'f()')}") == FENCED.rstrip()
    assert extract_code(f"```python\n{FENCED}") == FENCED.rstrip().partition("```")[0].rstrip(), "cut: as it was read"


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((HELPER, USER), f"{HELPER}\n\n{USER}"),
        ((USER, HELPER, "f(1)"), USER),
        ((CODE, USER, CODE), CODE),
        (("x = 1", CODE, "print(f(1))"), CODE),
        ((HELPER, "from math import sqrt", USER, "assert f(2) == 1"), f"{HELPER}\n\n{USER}"),
        (("print(1)", "print(2)"), "print(1)"),
        (("def f(", CODE), CODE),
    ],
)
def test_of_several_blocks_the_last_that_defines_the_name_counts_with_what_it_needs(
    codes: tuple[str, ...], expected: str
) -> None:
    assert extract_code(blocks(*codes), ("f",)) == expected
    assert extract_code(blocks(*codes)) == codes[0]


@given(st.lists(st.sampled_from([CODE, FENCED.rstrip(), HELPER, USER, "class f: ..."]), min_size=1, max_size=5))
def test_any_blocks_give_python(codes: list[str]) -> None:
    code = extract_code(blocks(*codes), {"f"})
    compile(code, "reply", "exec")
    defining = [each for each in codes if each != HELPER]
    assert code.endswith(defining[-1] if defining else codes[0])


def test_thoughts_without_end_hold_no_code() -> None:
    assert extract_code("<think>\n```python\nx = 1\n```") == ""


def test_indentation_of_a_body_is_kept() -> None:
    assert extract_code("    return x\n") == "    return x"


@given(st.text())
def test_any_text_gives_a_text(text: str) -> None:
    assert isinstance(extract_code(text), str)
