"""Tasksets of verifiers 0.4: equal scores under `finqa eval` and under `vf-eval`, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import failure
from fixtures.openai_server import calls, openai_server, says
from other_libraries.interpreters import PYTHONS
from other_libraries.test_same_scores import capitals, own_rows

from finqa_cli.app import main

Named = Callable[[str], list[str]]


def sums(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Right with a call, wrong without one, and one tool that fails."""
    question = next(message["content"] for message in body["messages"] if message["role"] == "user")
    first, second = map(int, re.findall(r"\d+", question))
    name = body["tools"][0]["function"]["name"]
    if first == 2:
        return says("I think it is 7.")
    if not any(message["role"] == "tool" for message in body["messages"]):
        return calls((name, {"a": -1 if first == 3 else first, "b": second}))
    return says(f"It is {first + second}.")


def theirs(url: str, name: str, folder: Path) -> list[Any]:
    """What `vf-eval` finds: a row per episode, with question, total, rewards and metrics."""
    python = PYTHONS["verifiers4"]
    assert python is not None
    variables = {
        **os.environ,
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
        "PYTHONPATH": str(Path.cwd()),
        "NO_KEY": "none",
    }
    agent = ["--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"]
    client = ["--client.base-url", url, "--client.api-key-var", "NO_KEY", "--model", "analyst"]
    command = [str(python.parent / "vf-eval"), name, *agent, *client, "-r", "1", "--no-push", "-o", str(folder)]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=280, check=False)
    (file,) = folder.glob("**/traces.jsonl")
    traces = [trace for line in file.read_text().splitlines() for trace in json.loads(line)["traces"]]
    assert all(not trace["errors"] for trace in traces), ended.stderr[-2000:]
    return [
        [
            trace["task"]["data"]["prompt"],
            sum(each["score"] * each["weight"] for each in trace["rewards"].values()),
            {**{part: each["score"] for part, each in trace["rewards"].items()}, **trace["metrics"]},
        ]
        for trace in traces
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "reply", "different"), [("sums-taskset", sums, 2), ("capitals-taskset", capitals, 4)])
def test_scores_are_those_of_their_own_runner(
    name: str,
    reply: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    different: int,
    named4: Named,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with openai_server(reply) as server:
        ours = own_rows(named4(f"verifiers:{name}"), tmp_path / "run", server, capsys)
        asked = len(server.asked)
        found = theirs(server.url, name, tmp_path / "theirs")
        assert len(server.asked) == 2 * asked
    by_question = sorted([question, total, parts] for _, question, total, parts in ours)
    assert by_question == sorted(found, key=lambda row: str(row[0])) and len(found) == 4
    assert len({total for _, _, total, _ in ours}) == different


@pytest.mark.parametrize(
    ("kind", "reason"), [("endless", "yields an infinite number of tasks."), ("container", "need a container")]
)
def test_what_cannot_be_played_is_refused(
    kind: str, reason: str, named4: Named, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = f"--set=environment.options.arguments.kind={kind}"
    status, said = failure(["eval", "random", *named4("verifiers:capitals-taskset"), arguments], capsys)
    assert status == 78 and reason in said


@pytest.mark.timeout(600)
def test_a_limit_cuts_an_episode_and_a_reward_that_raises_is_a_fault(named4: Named, tmp_path: Path) -> None:
    def again(body: Mapping[str, Any]) -> Mapping[str, Any]:
        return calls((body["tools"][0]["function"]["name"], {"a": 1, "b": 1}))

    with openai_server(again) as server:
        engine = ["--engine=openai", f"--set=engine.options.base_url={server.url}", "--split=test"]
        cut = [*named4("verifiers:sums-taskset"), "--max-steps=2", "--limit=1", f"--run-dir={tmp_path / 'cut'}"]
        assert main(["eval", "analyst", *engine, *cut]) == 0
    (episode,) = map(json.loads, (tmp_path / "cut" / "trajectories.jsonl").read_text().splitlines())
    assert episode["status"] == "max_turns" and episode["components"]["called"] >= 1
    with openai_server(capitals) as server:
        engine = ["--engine=openai", f"--set=engine.options.base_url={server.url}", "--split=test"]
        kind = ["--set=environment.options.arguments.kind=fail", "--limit=1", "--set=pool.max_play_retries=0"]
        run = f"--run-dir={tmp_path / 'run'}"
        assert main(["eval", "analyst", *engine, *named4("verifiers:capitals-taskset"), *kind, run]) == 3
    (episode,) = map(json.loads, (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines())
    assert episode["status"] == "environment_error" and "KeyError" in episode["error"]
