from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.environments.openenv.actions import shorten


def test_the_middle_of_a_long_observation_is_left_out() -> None:
    text = "Traceback:\n" + "x" * 500 + "\nNameError: word"
    short = shorten(text, 100)
    assert len(short) == 100 and short.startswith("Traceback:") and short.endswith("NameError: word")
    assert f"... {len(text)} characters in all ..." in short
    assert shorten(text, None) == text and shorten("short", 40) == "short"


@given(st.text(max_size=300), st.integers(40, 200))
def test_no_text_is_longer_than_its_limit(text: str, limit: int) -> None:
    assert len(shorten(text, limit)) <= limit
    assert shorten(text, limit) == text or len(text) > limit
