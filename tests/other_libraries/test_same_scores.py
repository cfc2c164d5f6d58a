"""The same fixed replies score the same under `finqa eval` and under the libraries' own runners."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document
from fixtures.openai_server import OpenAIServer, calls, openai_server, says
from other_libraries.interpreters import PYTHONS

Named = Callable[[str], list[str]]
Reply = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def _question(body: Mapping[str, Any]) -> str:
    return str(next(message["content"] for message in body["messages"] if message["role"] == "user"))


def sums(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Right with two calls in a turn, wrong without a call, one tool that fails, and one that calls until it is cut."""
    first, second = map(int, re.findall(r"\d+", _question(body)))
    turn = len(body["messages"]) - next(n for n, each in enumerate(body["messages"]) if each["role"] == "user")
    if first == 1 and turn == 1:
        return calls(("add", {"a": first, "b": second}), ("add", {"a": 2, "b": 2}), text="Adding.")
    if first == 2:
        return says("I think it is <answer>7</answer>")
    if first == 3 and turn == 1:
        failing = ("fail", {"reason": "no"}) if len(body["tools"]) > 1 else ("add", {"a": -1, "b": 2})
        return calls(failing)
    if first == 4:
        return calls(("add", {"a": turn, "b": 1}), text="again")
    return says(f"<answer>{first + second}</answer>" if len(body["tools"]) > 1 else f"It is {first + second}.")


def capitals(body: Mapping[str, Any]) -> Mapping[str, Any]:
    question = _question(body)
    known = {"France": "Paris", "Japan": "It is Tokyo", "Peru": "Paris or Lima, I say", "Kenya": "Mombasa"}
    return says(next(city for land, city in known.items() if land in question))


def guesses(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """From the top down, with one turn that is no number: 2 is out of reach in six turns."""
    said = sum(message["role"] == "assistant" for message in body["messages"])
    return says("Hm." if said == 1 else str((9, 0, 8, 6, 5, 4)[said]))


def letters(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return says("ANSWER: C" if "Peru" not in _question(body) else "I do not know")


def own_rows(chosen: list[str], run: Path, server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """A row per episode of `finqa eval`: identifier, question, total, and parts."""
    flags = [*chosen, "--engine=openai", f"--set=engine.options.base_url={server.url}", "--split=test,train"]
    report = document(["eval", "analyst", *flags, "--quiet", f"--run-dir={run}"], capsys)
    episodes = [json.loads(line) for line in (run / "trajectories.jsonl").read_text().splitlines()]
    assert len(episodes) == report["episodes"]
    for each in episodes:
        del each["components"]["correct"]
    return [[each["task"]["id"], each["task"]["prompt"], each["reward"], each["components"]] for each in episodes]


def _theirs(library: str, *arguments: str) -> list[Any]:
    script = Path(__file__).with_name(f"runner_of_{library}.py")
    ended = subprocess.run(
        [str(PYTHONS[library]), str(script), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return list(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("name", "reply", "different"),
    [("sums_of_verifiers", sums, 3), ("capitals_of_verifiers", capitals, 4), ("guess_of_verifiers", guesses, 3)],
)
def test_verifiers(
    name: str, reply: Reply, different: int, named: Named, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with openai_server(reply) as server:
        ours = own_rows(named(f"verifiers:{name}"), tmp_path / "run", server, capsys)
        asked = len(server.asked)
        theirs = _theirs("verifiers", server.url, name, "{}")
        assert len(server.asked) == 2 * asked
    by_question = sorted([question, total, parts] for _, question, total, parts in ours)
    assert by_question == sorted(theirs, key=lambda row: [row[0], row[1]]) and len(theirs) >= 3
    assert len({total for _, _, total, _ in ours}) == different


@pytest.mark.parametrize(
    ("task", "reply", "different"), [("sums", sums, 2), ("capitals", capitals, 2), ("chosen", letters, 2)]
)
def test_inspect(
    task: str, reply: Reply, different: int, named: Named, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def limited(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return reply(body) if len(body["messages"]) < 12 else says("It is 12, I think.")

    with openai_server(limited) as server:
        ours = own_rows(named(f"inspect:inspect_tasks.py@{task}"), tmp_path / "run", server, capsys)
        asked = len(server.asked)
        theirs = _theirs("inspect", server.url, f"inspect_tasks.py@{task}", str(tmp_path / "log"))
        assert len(server.asked) == 2 * asked
    assert sorted([name, parts] for name, _, _, parts in ours) == sorted(theirs, key=lambda row: str(row[0]))
    assert len(theirs) == 4 and len({total for _, _, total, _ in ours}) >= different
    for _, _, total, parts in ours:
        assert total == next(iter(parts.values()))
