"""What one turn costs this process when tokens come from a server in another one, at 320 and 1,000 requests at once.

Counted is the CPU time of this process, all its threads together: scheduler, engine client, codec, sessions, health
checks of the sandboxes and records. Not counted are the token server and the environment servers, which are other
processes, and the start. Both loads play as many turns a second, and are measured once first and later turns, and with
them the lengths of prompts, are mixed as in a long run. They differ in nothing but how many requests wait meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.figures import Figure, at_least, at_most, exactly, note
from benchmarks.sandboxes.token_server import ServerProcess, token_server
from benchmarks.sandboxes.world import SNAPSHOT, build_snapshot
from finqa_cli.contracts import ChatCodec
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.seeds import derive
from finqa_cli.rollout.stream import streaming
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.settings import Settings
from finqa_cli.types import GenerateRequest, Message, PolicyVersion, Sampling, Task, ToolCall, Trajectory
from finqa_cli.wiring.build import make_codec, open_environment
from finqa_cli.wiring.stage import stage
from finqa_plugins.engines._http.config import ServerConfig
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines._http.token_server import TokenServer
from finqa_plugins.engines._http.transport import LARGEST_REPLY, Answer, Body, Transport
from finqa_plugins.learners.torch.initial_policy import ModelSpec, PolicySpec, TokenizerSpec, create_policy

FEW, MANY = 320, 1000
MS_A_TURN, GROWTH = 3.0, 1.2
TURNS = 4.5
"""Of an episode, on average: one reply in so many submits an answer."""

TURNS_A_SECOND = 64
"""Of all episodes together while it is measured."""

WINDOW_S = 20.0

WARM_UP_TURNS, WARM_UP_RATE = 8, 3
"""Turns of each episode before the window, and how many times faster they are played than those in it."""

SPREAD = 2
"""Mean completions between the warm-up and the window, in which the requests get out of step."""

PROMPT_IDS, COMPLETION_IDS = 2000, 70


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Episodes at once, mean seconds of a completion, and seconds that are measured after the warm-up."""

    at_once: int
    completion_s: float
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What it took.

    Attributes:
        cpu_s: Of this process: sandboxes, codec, client, record and scheduler.
        turns: That were played.
        under_way: Requests at once, on average.
        prompt_ids: Of a request, on average.
        faults: Errors of the episodes that ended in one.
    """

    cpu_s: float
    turns: int
    under_way: float
    prompt_ids: float
    faults: Sequence[str]

    @property
    def ms(self) -> float:
        """CPU of a turn."""
        return self.cpu_s * 1000 / self.turns


async def client_cost(home: Path, *, quick: bool = False) -> list[Figure]:
    """All figures; `quick` is for tests."""
    scale = 20 if quick else 1
    build_snapshot(home, 290)
    loads = [
        Load(at_once=count // scale, completion_s=count / TURNS_A_SECOND / scale, window_s=WINDOW_S / scale)
        for count in (FEW, MANY)
    ]
    few, many = [await _play(home, load) for load in loads]
    ours, theirs = [await _requests(home, kind, FEW // scale) for kind in (Transport, HttpxTransport)]
    return [
        at_most(_name(loads[0]), few.ms, MS_A_TURN, _detail(few), timed=True),
        note(_name(loads[1]), many.ms, _detail(many)),
        at_most("the second by the first", many.ms / few.ms, GROWTH, timed=True),
        exactly(
            "episodes that ended in faults",
            len(faults := [*few.faults, *many.faults]),
            0,
            "; ".join(faults[:1]),
        ),
        note(
            f"CPU ms of a request alone, {FEW // scale} at once", ours, f"{PROMPT_IDS} ids there, {COMPLETION_IDS} back"
        ),
        at_least("the same with httpx, by that", theirs / ours, 2.0, f"{theirs:.2f} ms", timed=True),
    ]


def _name(load: Load) -> str:
    return f"orchestrator CPU ms a turn, {load.at_once} at once"


def _detail(cost: Cost) -> str:
    return (
        f"{cost.cpu_s:.1f} s for {cost.turns} turns, {cost.under_way:.0f} requests at once on average, prompts of "
        f"{cost.prompt_ids:.0f} ids; everything but environment servers and engine"
    )


async def _play(home: Path, load: Load) -> Cost:
    settings = _settings(home, load)
    environment = open_environment(settings, NullReporter())
    tasks = environment.tasks("train")
    tasks = [task for task in tasks if task.cluster == tasks[0].cluster]  # replies name one company
    model = await asyncio.to_thread(_model, home, settings, [task.prompt for task in environment.tasks("train")])
    codec = make_codec(settings, str(model))
    with (
        token_server(
            model, _replies(codec, tasks[0].cluster), seconds=load.completion_s / WARM_UP_RATE, home=home
        ) as server,
        tempfile.TemporaryDirectory(dir=home) as run,
        RunFolder.create(Path(run) / "run", command="benchmark", settings={}, save_token_ids=False) as folder,
    ):
        options = {"base_url": server.url, "max_concurrent": load.at_once}
        chosen = settings.model_copy(update={"engine": settings.engine.model_copy(update={"options": options})})
        async with stage(
            chosen, PolicyVersion(number=0, model=str(model)), run_id="benchmark", reporter=NullReporter(), trains=True
        ) as parts:
            faults: list[str] = []

            async def record(trajectory: Trajectory) -> None:
                await asyncio.wrap_future(folder.trajectory(trajectory, phase="train", iteration=1))
                if trajectory.status.is_fault:
                    faults.append(trajectory.error)

            player = parts.player(chosen, temperature=1.0)
            with contextlib.suppress(_Measured):
                async with streaming(player, concurrency=load.at_once) as stream:
                    stream.add(_Attempts(tasks), record)
                    await _warm_up(server, load)
                    before, began, cpu = await asyncio.to_thread(server.facts), time.perf_counter(), time.process_time()
                    await asyncio.sleep(load.window_s)
                    cpu_s, seconds = time.process_time() - cpu, time.perf_counter() - began
                    after = await asyncio.to_thread(server.facts)
                    raise _Measured  # cancels what is in progress
    turns = sum(after["served"].values()) - sum(before["served"].values())
    return Cost(
        cpu_s=cpu_s,
        turns=turns,
        under_way=(after["request_seconds"] - before["request_seconds"]) / seconds,
        prompt_ids=(after["prompt_ids"] - before["prompt_ids"]) / turns,
        faults=faults,
    )


async def _warm_up(server: ServerProcess, load: Load) -> None:
    """Plays fast until the turns of the episodes are mixed, then as in the window until the requests are spread."""
    while sum((await asyncio.to_thread(server.facts))["served"].values()) < WARM_UP_TURNS * load.at_once:  # noqa: ASYNC110  in another process
        await asyncio.sleep(load.completion_s / 10)
    await asyncio.to_thread(server.set_seconds, load.completion_s)
    await asyncio.sleep(SPREAD * load.completion_s)


class _Measured(Exception):
    """Ends the rollouts."""


class _Attempts:
    """Attempts at the tasks without end."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks, self._numbers = tasks, itertools.count()

    def next(self) -> Attempt | None:
        number = next(self._numbers)
        seed = derive(0, "client cost", number)
        return Attempt(id=f"train/{number}", task=self._tasks[number % len(self._tasks)], member=0, seed=seed)

    def done(self, attempt: Attempt, trajectory: Trajectory) -> None:
        """Keeps nothing."""


def _settings(home: Path, load: Load) -> Settings:
    return Settings.model_validate(
        {
            "sandbox": {"name": "local"},
            "engine": {"name": "openai"},
            "environment": {"name": "finqa"},
            "data": {"home": home, "snapshot": SNAPSHOT},
            "pool": {"sandboxes": load.at_once, "max_concurrent_play": load.at_once},
            "train": {"seed": 0, "group_size": 2},
        }
    )


def _model(home: Path, settings: Settings, questions: Sequence[str]) -> Path:
    """A model whose tokenizer knows bytes: so the short prompts of the task are about 2,000 ids."""
    folder = home / "model"
    if not folder.exists():
        spec = PolicySpec(
            model=ModelSpec(hidden_size=8, layers=1, heads=2, key_value_heads=1, head_dim=4, intermediate_size=8),
            tokenizer=TokenizerSpec(vocab_size=300),
        )
        create_policy(spec, questions, folder, 0)
    return folder


def _replies(codec: ChatCodec, company: str) -> list[tuple[int, ...]]:
    """Calls with some words before them, of about `COMPLETION_IDS` ids; one in `TURNS` submits."""
    words = "The question is about one company, so its tables come first. "
    found = []
    for name, arguments, count in (
        ("get_descriptions", {"company_name": company}, round(2 * (TURNS - 1))),
        ("submit_answer", {"answer": "12"}, 2),
    ):
        content = words
        call = ToolCall(name=name, arguments=arguments)
        while len(ids := codec.assistant(Message(role="assistant", content=content, tool_call=call))) < COMPLETION_IDS:
            content += words
        found += [ids] * count
    return found


class HttpxTransport(Transport):
    """The same requests as the product's transport sent them before it used aiohttp."""

    _client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _exchange(self, method: str, url: str, content: bytes | None, query: Mapping[str, str] | None) -> Answer:
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=FEW)
            self._client = httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)
        headers = {**self._headers, "Content-Type": "application/json"}
        async with self._client.stream(method, url, content=content, headers=headers, params=query) as response:
            body = Body(response.headers.get("Content-Encoding", ""), LARGEST_REPLY)
            async for chunk in response.aiter_raw():
                body.add(chunk)
            return Answer(response.status_code, response.headers, self._without_key(bytes(body.data)))


async def _requests(home: Path, kind: type[Transport], at_once: int) -> float:
    """CPU milliseconds of one completion, with so many in progress all the time."""
    replies = [(*range(2, COMPLETION_IDS + 1), 1)]
    with token_server(home, replies, seconds=1.0, home=home) as server:
        config = ServerConfig(base_url=server.url, max_concurrent=at_once, max_retries=0)
        client = Client(config, None, seed=0)
        client._transport = kind(config, None)
        tokens = TokenServer(client, model=None, folder="")
        places, count = asyncio.Semaphore(at_once), 3 * at_once

        async def ask(number: int) -> None:
            sampling = Sampling(max_tokens=COMPLETION_IDS, seed=number + 1, stop_ids=(1,))
            request = GenerateRequest(key=str(number), token_ids=tuple(range(2, PROMPT_IDS + 2)), sampling=sampling)
            async with places:
                await tokens.generate(request, served_name="base-model", max_tokens=COMPLETION_IDS)

        cpu = time.process_time()
        await asyncio.gather(*map(ask, range(count)))
        cpu_s = time.process_time() - cpu
        await tokens.close()
    return cpu_s * 1000 / count
