"""Engines: who generates. A token engine can serve training; a chat engine (expert, person, hosted API) cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from finqa_cli.types import AssistantTurn, ChatRequest, Completion, GenerateRequest, Message, PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What wiring tells an engine.

    Attributes:
        model: Folder or hub id of the base model; empty for engines without one.
        seed: Seed of everything that is not seeded by a request.
        dispatch_wait_ms: Longest wait to fill a batch, counted from its oldest request.
        tensor_parallel_size: GPUs that share one copy of the model.
        gpu_memory_utilization: Share of GPU memory that the engine may take.
        lora_rank: Largest adapter rank that will be loaded.
        max_context: Longest sequence in tokens, or 0 for the model's own limit.
        demonstrate: The environment's gold solutions, for an engine that takes no model; None when it has none.
    """

    model: str = ""
    seed: int = 0
    dispatch_wait_ms: int = 500
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.85
    lora_rank: int = 16
    max_context: int = 0
    demonstrate: Callable[[Sequence[Message]], AssistantTurn | None] | None = None


@runtime_checkable
class TokenEngine(Protocol):
    """Token ids in, token ids and log-probabilities out. Constructed as `Engine(config, context)`."""

    async def start(self) -> None:
        """Loads the model. Idempotent.

        Raises:
            ConfigError: The model folder is incomplete or does not fit; the message says what is missing.
        """
        ...

    def seat(self) -> AbstractContextManager[None]:
        """Announces one live episode for as long as the context is open.

        The engine knows so how many requests can still arrive: when every seat is waiting there is nothing to gain
        from waiting longer, and in lockstep mode the composition of each batch, and with it each bit of the result,
        does not depend on timing.
        """
        ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """Samples one completion under the loaded policy version. Cancellation frees its place.

        Raises:
            EngineError: The engine failed; other requests may still succeed.
        """
        ...

    async def load(self, policy: PolicyVersion) -> None:
        """Switches to another policy version; waits for running requests first. Later requests use the new one.

        Raises:
            EngineError: The adapter cannot be loaded; the old version keeps serving.
        """
        ...

    @property
    def lockstep(self) -> bool:
        """True when a batch is dispatched only once every seat waits (see `seat`); known after `start`."""
        ...

    @property
    def max_context(self) -> int:
        """Longest prompt plus completion in tokens."""
        ...

    async def close(self) -> None:
        """Frees the model. Idempotent."""
        ...


@runtime_checkable
class ChatEngine(Protocol):
    """Messages in, one assistant turn out. Constructed as `Engine(config, context)`."""

    async def start(self) -> None:
        """Gets ready. Idempotent."""
        ...

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """The next assistant turn; `stop="full"` when the conversation leaves no room for one, which is no fault.

        Raises:
            EngineError: The engine failed.
        """
        ...

    async def close(self) -> None:
        """Frees resources. Idempotent."""
        ...


@runtime_checkable
class Metered(Protocol):
    """An engine that knows what its episodes use; its figures stand in each trajectory's metadata."""

    def usage(self, episode: str) -> Mapping[str, Any]:
        """What the episode used so far, its restarts included: JSON values, costs in US dollars.

        Args:
            episode: The part of its requests' keys before `#`.
        """
        ...
