"""One sandbox as the published script uses it: one socket for all its episodes, and questions in its own order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.sandboxes.engine import SimulatedEngine
from benchmarks.sandboxes.policy import MAX_TURNS, SUBMIT
from finqa_cli.errors import EpisodeError
from finqa_cli.rollout.seeds import derive
from finqa_cli.types import ChatRequest, Message, Sampling, Task, ToolCall
from finqa_plugins.environments._openenv.openenv_client import OpenEnvClient
from finqa_plugins.environments.openenv_finqa.finqa_prompt import TOOL_SPECS, read_prompt

RESET_TIMEOUT_S, STATE_TIMEOUT_S, PING_TIMEOUT_S, STEP_TIMEOUT_S = 30.0, 15.0, 5.0, 45.0
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.25, 5.0


@dataclass(slots=True, kw_only=True)
class PublishedEpisode:
    """An episode in progress, or ended when it has a reward.

    Attributes:
        zeroed: The reward of 0 represents a fault of the sandbox, not for a wrong answer.
    """

    task: Task
    seed: int
    messages: tuple[Message, ...]
    call: ToolCall | None = None
    reward: float | None = None
    zeroed: bool = False

    @property
    def turns(self) -> int:
        """Replies of the model so far."""
        return sum(message.role == "assistant" for message in self.messages)


class PublishedSandbox:
    """Yields every question once, in its own order, before any repeats, as OpenEnv's server does per connection."""

    def __init__(self, number: int, url: str, tasks: Sequence[Task], seed: int) -> None:
        self._number = number
        self._url = url
        self._tasks = tasks
        self._seed = seed
        self._connections = 0
        self._episodes = 0
        self._left: list[Task] = []
        self._client: OpenEnvClient | None = None

    @property
    def connected(self) -> bool:
        """False after a fault or a cancelled call, until the next `connect`."""
        return self._client is not None and self._client.connected

    async def connect(self) -> None:
        """A new connection, hence another order of questions."""
        await self.close()
        client = OpenEnvClient(self._url)
        await client.connect()
        self._client = client
        self._connections += 1
        self._left = list(self._tasks)
        random.Random(derive(self._seed, "deal", self._number, self._connections)).shuffle(self._left)

    async def begin(self) -> PublishedEpisode:
        """The next question. Tries again forever, with growing pauses."""
        pause = FIRST_BACKOFF_S
        while True:
            try:
                if not self.connected:
                    await self.connect()
                self._left = self._left or list(self._tasks)
                task = self._left.pop()
                async with asyncio.timeout(RESET_TIMEOUT_S):
                    await self._socket.reset(question_id=task.id)
                async with asyncio.timeout(STATE_TIMEOUT_S):
                    await self._socket.state()
            except (EpisodeError, TimeoutError):
                await asyncio.sleep(pause)
                pause = min(LONGEST_BACKOFF_S, 2 * pause)
            else:
                break
        self._episodes += 1
        seed = derive(self._seed, "episode", self._number, self._episodes)
        return PublishedEpisode(task=task, seed=seed, messages=read_prompt(None).opening(task, TOOL_SPECS).messages)

    async def ping(self) -> None:
        """The look at every idle socket that follows each batch; one that does not answer is connected again."""
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                await self._socket.state()
        except (EpisodeError, TimeoutError):
            await self.connect()

    async def step(self, episode: PublishedEpisode) -> None:
        """Carries out the episode's call. A lost connection, or no reply to an answer, is a reward of 0."""
        call = episode.call
        assert call is not None, "the engine has answered"
        text, reward = await self._reply(call, episode)
        if reward is None and episode.turns >= MAX_TURNS:
            text, reward = await self._reply(ToolCall(name=SUBMIT, arguments={"answer": "unknown"}), episode)
        episode.messages = (*episode.messages, Message(role="tool", content=text, name=call.name))
        episode.reward = reward

    async def close(self) -> None:
        """Hangs up."""
        if self._client is not None:
            await self._client.close()

    async def _reply(self, call: ToolCall, episode: PublishedEpisode) -> tuple[str, float | None]:
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                reply = await self._socket.call_tool(call.name, call.arguments)
        except (EpisodeError, TimeoutError) as error:
            episode.zeroed = not self.connected or call.name == SUBMIT
            return f"Error: {error}", 0.0 if episode.zeroed else None
        if reply["done"]:
            return "", float(reply["reward"] or 0.0)
        result = reply["observation"].get("result")
        return str(result["data"]) if isinstance(result, dict) else f"Error: {reply['observation'].get('error')}", None

    @property
    def _socket(self) -> OpenEnvClient:
        assert self._client is not None, "the sandbox is connected"
        return self._client


async def generate(engine: SimulatedEngine, episode: PublishedEpisode) -> None:
    """The model's next turn."""
    sampling = Sampling(seed=episode.seed)
    request = ChatRequest(key=str(episode.seed), messages=episode.messages, tools=TOOL_SPECS, sampling=sampling)
    turn = await engine.respond(request)
    episode.call = turn.tool_call
    said = Message(role="assistant", content=turn.text, tool_call=turn.tool_call)
    episode.messages = (*episode.messages, said)
