"""A conversation uses one engine for one episode, with the same interface for token engines and chat engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from finqa_cli.contracts import (
    ChatCodec,
    ChatEngine,
    PlayedTurn,
    ReplyRole,
    TokenEngine,
    uncounted,
)
from finqa_cli.errors import ConfigError
from finqa_cli.rollout.seeds import derive
from finqa_cli.types import AssistantTurn, ChatRequest, GenerateRequest, Message, Observation, Prompt, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One assistant turn with its token ids, which are empty for chat engines; see `Turn` for the fields.

    `full`: the context had no room for a turn.
    """

    turn: AssistantTurn
    prompt_ids: tuple[int, ...] = ()
    restarts: bool = False
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    stop: str = "stop"
    policy_version: int = 0
    full: bool = False


class TokenConversation:
    """Conversation in token ids: the next prompt continues the sampled ids, which are never encoded again.

    If the chat template rewrites earlier turns, the next prompt is what the template renders. As long as that begins
    with the ids so far, the sequence continues; otherwise a new sequence begins.
    """

    def __init__(self, engine: TokenEngine, codec: ChatCodec, prompt: Prompt, *, key: str, sampling: Sampling) -> None:
        _refuse_images(prompt.messages)
        self._engine = engine
        self._codec = codec
        self._key = key
        self._sampling = replace(sampling, stop_ids=codec.stop_ids)
        self._history: tuple[int, ...] = ()
        self._pending: tuple[int, ...] = codec.opening(prompt)
        self._restarts = False
        self._turn = 0
        self._sampled: tuple[int, ...] = ()
        self._stopped = True
        self._prompt = prompt
        self._played: list[PlayedTurn] = []

    async def respond(self) -> Reply:
        """Sample one completion. The reply is `full` when the context has no room for another token.

        Raises:
            EngineError: The engine failed.
        """
        prompt_ids, self._pending = self._pending, ()
        token_ids = self._history + prompt_ids
        if len(token_ids) >= self._engine.max_context:
            return Reply(turn=AssistantTurn(text=""), full=True)
        sampling = replace(self._sampling, seed=derive(self._sampling.seed, "turn", self._turn))
        request = GenerateRequest(key=f"{self._key}#{self._turn:04d}", token_ids=token_ids, sampling=sampling)
        with uncounted.get()():  # the time depends on the engine's load; the length is limited in tokens
            completion = await self._engine.generate(request)
        parse = self._codec.parse_calls if self._prompt.several_calls else self._codec.parse
        self._turn += 1
        self._history = token_ids + completion.token_ids
        self._sampled = completion.token_ids
        self._stopped = completion.stop == "stop"
        return Reply(
            turn=parse(completion.token_ids),
            prompt_ids=prompt_ids,
            restarts=self._restarts,
            completion_ids=completion.token_ids,
            logprobs=completion.logprobs,
            stop=completion.stop,
            policy_version=completion.policy_version,
        )

    def observe(self, *replies: Observation, tools: Sequence[str] | None) -> None:
        """Encode the replies to a turn as the next prompt ids.

        Args:
            replies: One reply to each call of the turn, or the one reply to a turn without a call.
            tools: Name of the tool of each reply, empty if the call could not be parsed; None: a reply of the user.

        Raises:
            ConfigError: A reply has an image.
        """
        _refuse_images(replies)
        texts = [reply.text for reply in replies]
        role: ReplyRole = "user" if tools is None else "tool"
        if not self._codec.rewrites(role):
            if tools is None:
                self._pending = self._codec.user_reply(texts[0], stopped=self._stopped)
            elif len(texts) == 1:
                self._pending = self._codec.tool_reply(texts[0], stopped=self._stopped)
            else:
                self._pending = self._codec.tool_replies(texts, stopped=self._stopped)
            return
        played = PlayedTurn(
            completion_ids=self._sampled,
            stopped=self._stopped,
            reply=texts[0],
            role=role,
            further_replies=tuple(texts[1:]),
        )
        self._played.append(played)
        rendered = self._codec.history(self._prompt, self._played)
        self._restarts = rendered[: len(self._history)] != self._history
        if self._restarts:
            self._history = ()
        self._pending = rendered[len(self._history) :]


class ChatConversation:
    """Conversation in messages, for chat engines."""

    def __init__(
        self,
        engine: ChatEngine,
        prompt: Prompt,
        *,
        key: str,
        sampling: Sampling,
        task: str = "",
        takes_text: bool = False,
    ) -> None:
        self._engine = engine
        self._task = task
        self._takes_text = takes_text
        self._prompt = prompt
        self._key = key
        self._sampling = sampling
        self._messages = prompt.messages
        self._turn = 0

    async def respond(self) -> Reply:
        """Request a turn with the whole history. The reply is `full` when the model's context has no room for a turn.

        Raises:
            EngineError: The engine failed.
        """
        request = ChatRequest(
            key=f"{self._key}#{self._turn:04d}",
            messages=self._messages,
            tools=self._prompt.tools,
            sampling=self._sampling,
            task=self._task,
            several_calls=self._prompt.several_calls,
            takes_text=self._takes_text,
        )
        turn = await self._engine.respond(request)
        if turn.stop == "full":
            return Reply(turn=turn, full=True)
        self._turn += 1
        said = Message(role="assistant", content=turn.text, tool_call=turn.tool_call, further_calls=turn.further_calls)
        self._messages = (*self._messages, said)
        return Reply(turn=turn, stop=turn.stop)

    def observe(self, *replies: Observation, tools: Sequence[str] | None) -> None:
        """Append the replies, images included; see `TokenConversation.observe`."""
        role: ReplyRole = "user" if tools is None else "tool"
        self._messages = (
            *self._messages,
            *(
                Message(role=role, content=reply.text, name=tool, images=reply.images)
                for reply, tool in zip(replies, [""] if tools is None else tools, strict=True)
            ),
        )


def _refuse_images(contents: Sequence[Message | Observation]) -> None:
    """Refuse images, which codecs cannot encode.

    Raises:
        ConfigError: A message or reply has an image.
    """
    if any(each.images for each in contents):
        raise ConfigError(
            "The environment shows images, but token engines support text only.",
            remedy="--engine openai, with the URL of a model that supports images",
        )


Conversation = TokenConversation | ChatConversation
"""The conversation of one episode with its engine."""
