"""Engines: who generates. A token engine can serve training; a chat engine (expert, person, hosted API) cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from finqa_cli.types import AssistantTurn, ChatRequest, Completion, GenerateRequest, Message, PolicyVersion

uncounted: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar("uncounted", default=nullcontext)
"""`with uncounted.get()():` around what is not the policy's doing: the episode's time does not count there.

The rollout puts it around every completion of a token engine; a chat engine around its waits for leave to ask, such as
a rate limit or a free place among concurrent requests.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What wiring tells an engine.

    Attributes:
        model: Folder or hub id of the base model; empty for engines without one.
        seed: Seed of everything that is not seeded by a request.
        dispatch_wait_ms: Longest wait to fill a batch, counted from its oldest request.
        tensor_parallel_size: GPUs that share one copy of the model.
        gpu_memory_utilization: Share of GPU memory that the engine may take.
        devices: CUDA devices of this replica, as this process counts them; empty: chosen by the engine.
        sleep: The engine is to free its devices during updates (`Sleeper`).
        lora_rank: Largest adapter rank that will be loaded.
        max_context: Longest sequence in tokens, or 0 for the model's own limit.
        needs_tokens: The run trains, or plays an adapter: an engine that can also be a chat engine is to be a token
            engine, or to refuse.
        replica: Which of `replicas` this engine is: it has devices or a server of its own.
        replicas: Engines that share the run's requests.
        versions: Policy versions that may have requests under way at once.
        home: FINQA_HOME, below which `finqa setup` makes environments; None: there is none.
        log_dir: Where a server that the engine starts writes its output; None: to a temporary folder.
        demonstrate: The environment's gold solutions, for an engine that takes no model; None when it has none.
    """

    model: str = ""
    seed: int = 0
    dispatch_wait_ms: int = 500
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.85
    devices: tuple[int, ...] = ()
    sleep: bool = False
    lora_rank: int = 16
    max_context: int = 0
    needs_tokens: bool = False
    replica: int = 0
    replicas: int = 1
    versions: int = 1
    home: Path | None = None
    log_dir: Path | None = None
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
        """Switches to another policy version. Later requests use it; those under way end under the version that they
        began with, so that each completion is of one version. An engine that serves one at a time waits for them.

        Raises:
            EngineError: The adapter cannot be loaded; the old version keeps serving.
            ServiceUnavailableError: The engine is gone. A set of replicas leaves it out until it has loaded the current
                version. For `UnreachableEngineError`, where no replica is left, the run waits up to
                `train.sync_wait_s`.
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


@runtime_checkable
class Probed(Protocol):
    """A token engine whose weights lie in another process: after each sync the run proves that it serves them."""

    @property
    def probe_tolerance(self) -> float | Literal["measured"] | None:
        """Largest difference to the learner's log-probabilities that rounding explains at any token (nats).

        "measured" where it is not known: the run measures it on its first version. None: no probe.
        """
        ...

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        """The request's completion by number of the replica, none of them from a cache of an earlier version.

        An engine without replicas is number 0. One that cannot be reached may be left out.

        Raises:
            EngineError: A replica failed.
            ServiceUnavailableError: It is gone.
        """
        ...


@runtime_checkable
class Sleeper(Protocol):
    """A token engine that can give its device to the learner for the time of an update."""

    @property
    def sleeps(self) -> bool:
        """Whether the settings ask for it; nothing may be under way then, so rollouts cannot overlap with updates."""
        ...

    async def sleep(self) -> None:
        """Frees the device. Idempotent.

        Raises:
            EngineError: The engine failed.
        """
        ...

    async def wake(self) -> None:
        """Takes the device again; serves the version that it served before. Idempotent.

        Raises:
            EngineError: The engine failed.
        """
        ...
