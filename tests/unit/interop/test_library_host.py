"""The process of a library without one: how conversations are held, and what is said where a library is missing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import failure

from finqa_cli.errors import ConfigError, MissingDependencyError
from finqa_cli.extend.registry import registry
from finqa_cli.masking import without_secrets
from finqa_interop.config import LibraryConfig
from finqa_interop.host_path.finqa_host.chat_forms import Ask, StopEpisode, chat_message
from finqa_interop.host_path.finqa_host.library_host import Host, serve
from finqa_interop.host_process import load

TOOL = {"name": "add", "description": "", "parameters": {"type": "object", "properties": {}}}


class Echo:
    """Asks twice. The verdict is the number of turns that were said; place 1 fails, and place 2 scores no number."""

    version = "echo 1"

    def tasks(self) -> list[dict[str, Any]]:
        return [{"prompt": "first"}, {"prompt": "second"}, {"prompt": "third"}]

    async def play(self, place: int, ask: Ask) -> dict[str, Any]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": str(place)}]
        said = 0
        try:
            for _ in range(2):
                messages = [*messages, await ask(messages, [TOOL])]
                said += 1
        except StopEpisode:
            pass
        if place == 1:
            raise KeyError("no such row")
        return {"total": float("nan") if place == 2 else float(said), "parts": {"said": float(said)}, "why": ""}


def exchange(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    """The replies, in order, to requests that are sent one after the other."""

    async def all_of_them() -> list[dict[str, Any]]:
        host, replies = Host(Echo()), []
        for number, request in enumerate(requests):
            reader = asyncio.StreamReader()
            answered = asyncio.Event()

            def write(reply: dict[str, Any], answered: asyncio.Event = answered) -> None:
                replies.append(reply)
                answered.set()

            reader.feed_data(json.dumps({"id": number, **request}).encode() + b"\n")
            reader.feed_eof()
            await serve(host, reader, write)
            await asyncio.wait_for(answered.wait(), 10)
        return replies

    return asyncio.run(all_of_them())


def opened(place: int) -> dict[str, Any]:
    return {"op": "open", "session": "s", "task": place}


TURN = {"op": "turn", "session": "s", "message": {"role": "assistant", "content": "yes", "tool_calls": []}}


def test_the_loop_waits_for_each_turn_and_ends_with_its_verdict() -> None:
    first, second, verdict, closed = exchange(opened(0), TURN, TURN, {"op": "close", "session": "s"})
    assert first == {"id": 0, "messages": [{"role": "user", "content": "0"}], "tools": [TOOL]}
    assert second["messages"] == [*first["messages"], TURN["message"]]
    assert verdict == {"id": 2, "verdict": {"total": 2.0, "parts": {"said": 2.0}, "why": ""}}
    assert closed == {"id": 3}


def test_an_episode_that_is_cut_is_scored_as_it_is() -> None:
    assert exchange(opened(0), TURN, {"op": "stop", "session": "s"})[-1]["verdict"]["total"] == 1.0


def test_an_exception_names_its_type_and_place_and_a_score_is_a_number() -> None:
    failed = exchange(opened(1), {"op": "stop", "session": "s"})[-1]
    assert failed["error"].startswith("KeyError: 'no such row'") and "test_library_host.py:" in failed["error"]
    assert "a score is not a finite number" in exchange(opened(2), {"op": "stop", "session": "s"})[-1]["error"]


def test_an_episode_is_closed_while_it_waits_and_closing_twice_is_no_error() -> None:
    close = {"op": "close", "session": "s"}
    assert exchange(opened(0), close, close)[1:] == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb"},
        ),
        (
            {"role": "user", "content": [{"type": "image", "image": "data:image/png;base64,AA=="}]},
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}],
            },
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": "f", "arguments": {"a": 1}}]},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "f", "arguments": '{"a": 1}'}]},
        ),
        (
            {"role": "tool", "content": "", "tool_call_id": "1", "error": {"message": "no"}},
            {"role": "tool", "content": "Error: no", "tool_call_id": "1", "error": True},
        ),
    ],
)
def test_messages_of_both_libraries_become_those_of_chat_completions(
    message: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert chat_message(message) == expected


def test_a_part_that_cannot_be_shown_is_an_error() -> None:
    with pytest.raises(ValueError, match="'audio'"):
        chat_message({"role": "user", "content": [{"type": "audio"}]})


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("verifiers:my-env", "my-env"),
        ("verifiers:sums", "sums"),
        ("inspect:a/b.py@t", "a/b.py@t"),
        ("inspect:a.py", "a.py"),
    ],
)
def test_names_are_those_of_the_libraries_and_not_of_a_module(name: str, source: str) -> None:
    found = registry().find("environment", name)
    assert found.given == {"library": name.partition(":")[0], "source": source}


@pytest.mark.parametrize(("library", "package"), [("verifiers", "verifiers"), ("inspect", "inspect_ai")])
def test_a_missing_library_is_named_with_what_to_install(library: Any, package: str) -> None:
    with pytest.raises(MissingDependencyError, match=f"does not have {package}") as caught:
        load(LibraryConfig(library=library, source="x"))
    assert f"pip install '{package}>=" in caught.value.remedy
    assert "--set environment.options.python=PATH/bin/python" in caught.value.remedy


def test_an_interpreter_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere cannot be started"):
        load(LibraryConfig(source="x", python=tmp_path / "nowhere"))


def test_a_reward_of_ones_own_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = failure(["eval", "random", "--environment=verifiers:x", "--data=rows.jsonl"], capsys)
    assert status == 78 and "verifiers:x has its own dataset." in said and "leave --data out" in said


def test_other_programs_get_no_secrets() -> None:
    given = {"SOME_API_KEY": "x", "SOME_NAME": "kept", "SOME_URL": "http://me:password@host.invalid/"}
    assert without_secrets(given) == {"SOME_NAME": "kept"}
