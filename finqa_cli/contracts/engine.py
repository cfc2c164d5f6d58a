"""Engines generate turns.

A token engine can be used for training; a chat engine (expert, person, hosted API) cannot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finqa_cli.contracts.engine_loans import EngineLoan
from finqa_cli.errors import ConfigError
from finqa_cli.types import AssistantTurn, ChatRequest, Completion, GenerateRequest, Message, PolicyVersion

uncounted: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar("uncounted", default=nullcontext)
"""`with uncounted.get()():` around what is not the policy's doing: the episode's time does not count there.

The rollout puts it around every completion of a token engine; a chat engine around its waits before a request, such as
a rate limit or a free place among concurrent requests; the client of an environment's server around its time in a queue
of that server.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """Context of an engine.

    Attributes:
        model: Folder or hub id of the base model; empty for engines without one.
        seed: Seed of everything that is not seeded by a request.
        dispatch_wait_ms: Longest wait to fill a batch, counted from its oldest request.
        tensor_parallel_size: GPUs that share one copy of the model.
        gpu_memory_utilization: Share of GPU memory that the engine may use.
        devices: CUDA devices of this replica, as numbered in this process; empty: chosen by the engine.
        sleep: The engine must free its devices during updates (`TokenEngine.sleeps`).
        lora_rank: Largest adapter rank that will be loaded.
        max_context: Longest sequence in tokens, or 0 for the model's own limit.
        needs_tokens: The run trains, or plays an adapter: an engine that can also be a chat engine is to be a token
            engine, or to refuse.
        replica: Which of `replicas` this engine is: it has devices or a server of its own.
        replicas: Engines that share the run's requests.
        versions: Policy versions that may have requests in progress at once.
        home: FINQA_HOME, below which `finqa setup` makes environments; None: there is none.
        log_dir: Where a server that the engine starts writes its output; None: to a temporary folder.
        lends: Rollout workers are to ask the servers that the engine starts themselves, see `TokenEngine.lend`.
        host: Address at which servers that the engine starts listen.
        cluster: Address of the Ray cluster, for an engine that runs on its nodes (`cluster.address`).
        demonstrate: The environment's gold solutions by task id and conversation, for an engine that takes no model;
            None when it has none.
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
    lends: bool = False
    host: str = "127.0.0.1"
    cluster: str = "auto"
    demonstrate: Callable[[str, Sequence[Message]], AssistantTurn | None] | None = None


class Engine(ABC):
    """Common base class of token engines and chat engines; an engine is a subclass of `TokenEngine` or `ChatEngine`.

    Constructed as `Engine(config, context)`.
    """

    lockstep: bool = False
    """Whether a batch is dispatched only once every seat waits (see `seat`); known after `start`."""

    @abstractmethod
    async def start(self) -> None:
        """Start the engine, and load its model if it has one. Idempotent.

        Raises:
            ConfigError: The model folder is incomplete or does not fit; the message states what is missing.
        """

    @abstractmethod
    async def close(self) -> None:
        """Free the model and other resources. Idempotent."""

    def seat(self) -> AbstractContextManager[None]:
        """Register one live episode while the context is open. Default: the engine does not count episodes.

        The engine knows so how many requests can still arrive: when every seat is waiting there is nothing to gain
        from waiting longer, and in lockstep mode the composition of each batch, and with it each bit of the result,
        does not depend on timing.
        """
        return nullcontext()

    def usage(self, episode: str) -> Mapping[str, Any]:
        """Return what an episode used so far, its restarts included: JSON values, costs in US dollars.

        The figures are stored in the metadata of each trajectory. Default: none, the engine does not count.

        Args:
            episode: The part of its requests' keys before `#`.
        """
        return {}


class TokenEngine(Engine):
    """Base class of engines with token ids in, token ids and log-probabilities out: what training needs.

    `start`, `generate`, `load`, `max_context` and `close` are required; everything else has a default.
    """

    sleeps: bool = False
    """Whether the engine gives its device to the learner during updates, with `sleep` and `wake`.

    Nothing may be in progress then, so rollouts cannot overlap with updates.
    """

    probe_tolerance: float | Literal["measured"] | None = None
    """Largest difference to the learner's log-probabilities that rounding explains at any token (nats).

    For an engine whose weights are in another process: after each sync the run shows with `probe` that it serves them.
    "measured" where the difference is not known: the run measures it on its first version. None: no probe.
    """

    adapter_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type to which the engine rounds the weights of an adapter, in which they may be sent to it; known after `start`.

    float32: it does not round them, or it is not known.
    """

    reports_return: bool = False
    """Whether `returned` ends once an engine that could not be reached serves again the version that it loaded last.

    A set of replicas uses it then; other engines it tries from time to time.
    """

    @property
    def nodes(self) -> tuple[str, ...]:
        """Address of the node of each replica, for an engine that runs on nodes of a cluster; known after `start`."""
        return ()

    @property
    @abstractmethod
    def max_context(self) -> int:
        """Longest prompt plus completion in tokens; known after `start`."""

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion under the loaded policy version. Cancellation frees its place.

        Raises:
            EngineError: The engine failed; other requests may still succeed.
        """

    @abstractmethod
    async def load(self, policy: PolicyVersion) -> None:
        """Switch to another policy version. Later requests use it; those in progress end under the version that they
        began with, so that each completion is of one version. An engine that serves one at a time waits for them.

        Raises:
            EngineError: The adapter cannot be loaded; the old version keeps serving.
            ServiceUnavailableError: The engine is not reachable. A set of replicas leaves it out until it has loaded
                the current
                version. For `UnreachableEngineError`, where no replica is left, the run waits up to
                `train.sync_wait_s`.
        """

    async def returned(self) -> None:
        """Wait until the engine, which could not be reached, serves again. Default: nothing; see `reports_return`."""

    async def sleep(self) -> None:
        """Free the device. Idempotent. Default: nothing, for engines with `sleeps` False.

        Raises:
            EngineError: The engine failed.
        """

    async def wake(self) -> None:
        """Take the device again and serve the version that was served before. Idempotent. Default: nothing.

        Raises:
            EngineError: The engine failed.
        """

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        """Return the request's completion by number of the replica, none of them from a cache of an earlier version.

        An engine without replicas is number 0. One that cannot be reached may be left out. Default: refuses, for
        engines with `probe_tolerance` None.

        Raises:
            EngineError: A replica failed.
            ServiceUnavailableError: The engine is not reachable.
        """
        raise ConfigError(f"Engine {type(self).__name__} cannot be probed.")

    def lend(self) -> EngineLoan | None:
        """Have the servers keep the current version for other processes, which ask them without this engine.

        Returns:
            How they are asked. None: they cannot be, or not now. Default: None, for engines without such servers.
        """
        return None


class ChatEngine(Engine):
    """Base class of engines with messages in, one assistant turn out. Only `start`, `respond`, `close` are required."""

    @abstractmethod
    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """Return the next assistant turn; `stop="full"` when the conversation leaves no room for one.

        Raises:
            EngineError: The engine failed.
        """
