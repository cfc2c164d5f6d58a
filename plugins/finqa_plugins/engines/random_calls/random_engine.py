"""A chat engine that calls random tools with random arguments: a baseline for policies."""

from __future__ import annotations

import random

from pydantic import BaseModel, ConfigDict, Field

from finqa_cli.contracts import ChatEngine, EngineContext
from finqa_cli.types import AssistantTurn, ChatRequest, ToolCall
from finqa_plugins.environments._schemas.random_values import draw_value


class RandomConfig(BaseModel):
    """Options of the random baseline."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    plain_words: float = Field(
        default=0.0, ge=0.0, le=1.0, description="Share of the turns without a tool call, if there are tools"
    )


class RandomEngine(ChatEngine):
    """Every turn depends on the conversation, the run's seed, and the seed and turn number of its request."""

    def __init__(self, config: RandomConfig | None, context: EngineContext) -> None:
        self._config = config or RandomConfig()
        self._seed = context.seed

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to free."""

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """Call one of the tools; without tools, or at random, answer with a number or a word of the messages."""
        rng = random.Random(f"random:{self._seed}:{request.sampling.seed}:{request.key.rpartition('#')[2]}")
        text = "\n".join(message.content for message in request.messages if message.role in ("user", "tool"))
        if not request.tools or rng.random() < self._config.plain_words:
            kind = rng.choice(["number", "string"])
            return AssistantTurn(text=str(draw_value({"type": kind}, rng, text)))
        tool = rng.choice(request.tools)
        arguments = draw_value({**tool.parameters, "type": "object"}, rng, text)
        return AssistantTurn.calling(ToolCall(name=tool.name, arguments=arguments))
