from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import EnvironmentFault
from finqa_plugins.environments.openenv.actions import read_observation, read_result, shorten

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(40)).decode()
SEEN = f"data:image/png;base64,{PNG}", f"data:image/jpeg;base64,{JPEG}"


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


@pytest.mark.parametrize(
    ("fields", "text", "images"),
    [
        ({"screenshot": PNG, "url": "a.org"}, "a.org", SEEN[:1]),
        ({"pixels": SEEN[0], "goal": "go", "step": 1}, "goal: go\nstep: 1", SEEN[:1]),
        ({"visual_observations": [PNG, JPEG]}, "", SEEN),
        ({"mixed": [PNG, "a text"]}, f'["{PNG}", "a text"]', ()),
        ({"path": "/9j/is a path of a text that is as long as a small image"}, None, ()),
        ({"cut": PNG[:-3]}, PNG[:-3], ()),
    ],
)
def test_images_of_an_observation_are_not_text(
    fields: dict[str, Any], text: str | None, images: tuple[str, ...]
) -> None:
    expected = next(iter(fields.values())) if text is None else text
    assert read_observation({**fields, "done": False, "reward": 1.0}) == (expected, images)


def test_images_of_a_tool_follow_its_text() -> None:
    text, image = {"type": "text", "text": "A plot."}, {"type": "image", "data": PNG, "mimeType": "image/png"}
    assert read_result({"result": {"content": [text, image]}}) == ("A plot.", SEEN[:1], False)
    assert read_result({"result": {"content": [image], "data": None, "is_error": True}}) == ("", SEEN[:1], True)
    assert read_result({"result": {"content": [text, image], "data": {"n": 1}}}) == ('{"n": 1}', SEEN[:1], False)


@pytest.mark.parametrize(
    "part", [{"type": "audio\x1b", "data": "x"}, {"type": "image", "data": "x"}, {"type": "image"}]
)
def test_other_parts_are_a_fault_of_the_server(part: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentFault, match="The server's reply") as fault:
        read_result({"result": {"content": [part]}})
    assert fault.value.message.isprintable()
