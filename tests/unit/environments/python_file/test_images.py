"""Images in prompts and replies: read as users write them, shown to models that see, else refused."""

from __future__ import annotations

import base64
import struct
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fixtures.toy_environment import ToyChatEngine, ToyCodec, ToyTokenEngine

from finqa_cli.algorithms.samples import demonstration_sample
from finqa_cli.contracts import Environment, EnvironmentContext
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.extend import registry
from finqa_cli.publishing.export_attempts import openai_messages
from finqa_cli.rollout.attempts import Attempt, Player, Seat
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import Pool
from finqa_cli.runs.trajectory_records import exchange, recorded_prompt, trajectory_record
from finqa_cli.types import AssistantTurn, Sampling, Status, ToolCall, Trajectory
from finqa_plugins.engines.openai.chat_messages import chat_messages
from finqa_plugins.environments._task_files.content_parts import image_address, read_content


def png(shade: int = 0) -> bytes:
    """One grey pixel."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes([0, shade])))
        + chunk(b"IEND", b"")
    )


URI = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
CHART = f"""
PIXEL = {png()!r}


class Chart:
    \"\"\"Read the chart.\"\"\"

    reward = 0

    @staticmethod
    def tasks():
        for number in range(3):
            parts = [{{"type": "text", "text": f"What is shown? {{number}}"}}, PIXEL]
            yield {{"prompt": [{{"role": "user", "content": parts}}]}}

    def zoom(self, factor: int) -> list:
        \"\"\"Enlarge the chart.\"\"\"
        return [f"{{factor}} times", PIXEL]

    def submit(self, answer: str) -> None:
        \"\"\"Answer.\"\"\"
        self.reward, self.done = answer == "black", True
"""
ZOOM = AssistantTurn.calling(ToolCall(name="zoom", arguments={"factor": 2}))
SUBMIT = AssistantTurn.calling(ToolCall(name="submit", arguments={"answer": "black"}))


@pytest.fixture
def chart(tmp_path: Path) -> Environment:
    path = tmp_path / "chart.py"
    path.write_text(CHART, encoding="utf-8")
    context = EnvironmentContext(snapshot=None)
    return registry().create("environment", str(path), {}, context)


async def play(environment: Environment, engine: Any) -> Trajectory:
    limits, sampling = Limits(), Sampling()
    player = Player(environment, Pool(), engine, ToyCodec(), limits=limits, sampling=sampling, max_retries=0)
    task = environment.tasks("train")[0]
    return await player.play(Attempt(id="t", task=task, member=0, seed=0), Seat(nullcontext))


async def test_images_of_prompts_and_tools_reach_a_model_that_sees(chart: Environment) -> None:
    engine = ToyChatEngine(ZOOM, SUBMIT)
    trajectory = await play(chart, engine)
    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, 1.0)
    asked = chat_messages(engine.requests[1].messages)
    assert asked[1]["content"] == [
        {"type": "text", "text": "What is shown? 0"},
        {"type": "image_url", "image_url": {"url": URI}},
    ]
    assert [message["role"] for message in asked] == ["system", "user", "assistant", "tool", "user"]
    assert asked[3]["content"] == "2 times"
    assert asked[4]["content"] == [{"type": "image_url", "image_url": {"url": URI}}]


async def test_images_are_recorded_and_exported(chart: Environment) -> None:
    record = trajectory_record(await play(chart, ToyChatEngine(ZOOM, SUBMIT)))
    prompt = recorded_prompt(record)
    messages = [message for turn in record["turns"] for message in exchange(turn)]
    assert prompt.messages[-1].images == (URI,) and messages[1].images == (URI,)
    rows = openai_messages(prompt, messages)
    assert rows[1]["content"][1] == {"type": "image_url", "image_url": {"url": URI}}
    with pytest.raises(DataError, match="has images"):
        demonstration_sample(prompt, messages, ToyCodec())


async def test_an_engine_of_tokens_refuses_images_and_never_leaves_them_out(chart: Environment) -> None:
    with pytest.raises(ConfigError, match="shows images") as caught:
        await play(chart, ToyTokenEngine())
    assert "--engine openai" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("value", "start"),
    [
        (png(), "data:image/png;base64,"),
        (b"\xff\xd8\xff\xe0rest", "data:image/jpeg;base64,"),
        (b"GIF89a", "data:image/gif;base64,"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "data:image/webp;base64,"),
        ({"type": "image_url", "image_url": {"url": "https://h/a.png"}}, "https://h/a.png"),
        ({"type": "image_url", "image_url": URI}, URI),
    ],
)
def test_what_is_an_image(value: Any, start: str) -> None:
    address = image_address(value)
    assert address is not None and address.startswith(start)
    assert read_content(["a", value, {"type": "text", "text": "b"}]) == ("a\nb", (address,))


def test_an_image_of_pillow_is_one() -> None:
    from PIL import Image

    address = image_address(Image.new("L", (2, 2)))
    assert address is not None and base64.b64decode(address.partition(",")[2]).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "value", [b"plain bytes", 7, None, {"type": "image_url", "image_url": {"url": "file:///etc"}}, {}]
)
def test_what_is_no_image(value: Any) -> None:
    assert image_address(value) is None
    with pytest.raises(ValueError, match="texts and images"):
        read_content(["a", value])
