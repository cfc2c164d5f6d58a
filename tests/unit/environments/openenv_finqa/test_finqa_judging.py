"""A configured reward instead of the server's verdict, scored with the snapshot's truth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.finqa_server import RunningServer, finqa_server
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_cli.contracts import EnvironmentContext, Reward
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.extend import registry
from finqa_cli.grading import Verdict
from finqa_cli.types import Snapshot, Task, ToolCall
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.environments.openenv_finqa.finqa_verdicts import Verdicts
from finqa_plugins.environments.openenv_finqa.gold_truths import Truths

TASK = Task(id="q1", prompt="What are total revenues in 2024?", split="train", cluster="acme", kind="lookup")
FOUND = Verdict(0.0, "not by these rules")


def reward(name: str, **options: Any) -> Reward:
    made: Reward = registry().create("reward", name, options)
    return made


def verdicts(snapshot: Snapshot, chosen: Reward) -> Verdicts:
    return Verdicts(Truths(snapshot), grader="openenv", reward=chosen, judge=None)


async def test_the_reward_decides_and_the_servers_part_stays(tmp_path: Path) -> None:
    decides = verdicts(write_tiny_snapshot(tmp_path), reward("weighted", format="plain"))
    rewards = await decides.complete(TASK, "6118", FOUND, None)
    parts = {"exact": 1.0, "numerical": 0.0, "correct": 0.0, "environment_exact": 1.0}
    assert rewards.total == 1.0 and rewards.components == parts
    assert (await decides.complete(TASK, None, FOUND, None)).total == 0.0


@pytest.mark.parametrize("name", ["weighted", "ternary", "graded"])
def test_a_reward_that_reads_json_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="plain answers") as caught:
        verdicts(write_tiny_snapshot(tmp_path), reward(name, format="json"))
    assert "format=plain" in caught.value.remedy


@pytest.mark.parametrize("text", ['{"id": "q2", "answer": "1"}\n', '{"id": "q1"}\n', "[]\n", "no json\n", "\xff\n"])
async def test_a_damaged_truth_is_told_with_the_command_that_mends_it(tmp_path: Path, text: str) -> None:
    snapshot = write_tiny_snapshot(tmp_path)
    (tmp_path / "truth.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="'tiny' is damaged") as caught:
        await verdicts(snapshot, reward("graded")).complete(TASK, "6118", FOUND, None)
    assert caught.value.remedy == "finqa snapshot build --snapshot-name tiny --data DIR"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with finqa_server(tmp_path_factory.mktemp("judged")) as running:
        yield running


@pytest.mark.parametrize(
    ("answer", "total", "correct"), [("6118", 1.0, 1.0), ("6000", 0.8 * (1 - (118 / 6118) / 0.05), 0.0)]
)
async def test_an_episode_on_the_real_server(server: RunningServer, answer: str, total: float, correct: float) -> None:
    context = EnvironmentContext(snapshot=server.snapshot, reward=reward("weighted", format="plain"))
    session = await FinQAEnvironment(None, context).open(TASK, seed=0, sandbox=server)
    await session.step(ToolCall(name="submit_answer", arguments={"answer": answer}))
    rewards = await session.grade()
    await session.close()
    assert rewards.total == pytest.approx(total) and rewards.components["correct"] == correct
    assert rewards.components["environment_exact"] == correct, "the reward has a part `exact` of its own"
    assert sum(rewards.components[name] for name in ("exact", "numerical")) == rewards.total
