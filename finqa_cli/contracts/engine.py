"""Engines generate turns.

A token engine can be used for training; a chat engine (expert, person, hosted API) cannot.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from finqa_cli.contracts.engine_loans import EngineLoan
from finqa_cli.errors import ConfigError
from finqa_cli.types import AssistantTurn, ChatRequest, Completion, GenerateRequest, Message, PolicyVersion

uncounted: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar("uncounted", default=nullcontext)
"""Context in which the time limit of the episode stands still: `with uncounted.get()():`.

It is for time that the policy does not cause. The rollout uses it around every completion of a token engine. A chat
engine uses it around its waits before a request, for a rate limit or for a free place among concurrent requests. The
client of an environment's server uses it around the time in a queue of that server.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """Context of an engine.

    Attributes:
        model: Folder or hub id of the base model; empty for engines without one.
        seed: Seed of the run, for choices that must be the same in each replica and after each resume.
        process_seed: Seed of the random generators of a process that the engine starts. No two processes of a run have
            the same: it depends on the run's seed, the replica and the number of the start; see `restarted`.
        dispatch_wait_ms: Longest wait to fill a batch, counted from its oldest request.
        tensor_parallel_size: GPUs that share one copy of the model.
        gpu_memory_utilization: Share of GPU memory that the engine may use.
        devices: CUDA devices of this replica, as numbered in this process; empty: chosen by the engine.
        sleep: The engine must free its devices during updates (`TokenEngine.sleeps`).
        lora_rank: Largest adapter rank that will be loaded.
        max_context: Longest sequence in tokens, or 0 for the model's own limit.
        needs_tokens: The run trains, or plays an adapter. An engine that can be either kind must then be a token
            engine, or raise an error.
        replica: Number of this engine among `replicas`, from 0; each has its own devices or server.
        replicas: Number of engines that share the requests of the run.
        versions: Policy versions that may have requests in progress at once.
        home: FINQA_HOME, below which `finqa setup` creates virtual environments; None: there is none.
        log_dir: Folder for the output of a server that the engine starts; None: a temporary folder.
        lends: Rollout workers send requests directly to the servers that the engine starts, see `TokenEngine.lend`.
        host: Address at which servers that the engine starts listen.
        cluster: Address of the Ray cluster, for an engine that runs on its nodes (`cluster.address`).
        demonstrate: The environment's gold solutions by task id and conversation, for an engine that takes no model;
            None when it has none.
    """

    model: str = ""
    seed: int = 0
    process_seed: int = 0
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

    def restarted(self, number: int) -> EngineContext:
        """Return the context of the start `number` of the engine's process, which draws other random numbers."""
        drawn = random.Random(f"process:{self.process_seed}:{number}").getrandbits(63)
        return replace(self, process_seed=drawn)


class Engine(ABC):
    """Common base class of token engines and chat engines; an engine is a subclass of `TokenEngine` or `ChatEngine`.

    Constructed as `Engine(config, context)`.
    """

    lockstep: bool = False
    """Whether a batch is dispatched only when every seat has a waiting request (see `seat`); known after `start`."""

    loads_model: bool = False
    """Whether the engine reads the model's files: those of a hub id are then in the hub's cache before `start`.

    `finqa_cli.local_models.local_model` returns their folder.
    """

    def check(self) -> None:
        """Check that the engine can serve its model, before sandboxes start. Reads configurations, never weights.

        The default checks nothing, and leaves it to `start`.

        Raises:
            ConfigError: It cannot.
        """
        return

    @abstractmethod
    async def start(self) -> None:
        """Start the engine, and load its model if it has one. Idempotent.

        Raises:
            ConfigError: The model folder is incomplete or does not fit the engine; the message states what is missing.
        """

    @abstractmethod
    async def close(self) -> None:
        """Free the model and other resources. Idempotent."""

    def seat(self) -> AbstractContextManager[None]:
        """Register one live episode while the context is open. Default: the engine does not count episodes.

        The number of seats is the number of requests that can be in progress. When every seat has a waiting request,
        waiting longer gains nothing. In lockstep mode the composition of each batch, and so every bit of the result,
        does not depend on timing.
        """
        return nullcontext()

    def usage(self, episode: str) -> Mapping[str, Any]:
        """Return what an episode used so far, its restarts included: JSON values by name, costs in US dollars.

        The figures are stored in the metadata of each trajectory. Default: an empty mapping, the engine does not count.

        Args:
            episode: The part of the keys of its requests before `#`.
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
    """Largest difference to the learner's log-probabilities that rounding can cause at any token, in nats.

    It is for an engine whose weights are in another process: after each sync the run checks with `probe` that the
    engine serves the new weights. "measured": the difference is not known, and the run measures it on its first
    version. None: no probe.
    """

    adapter_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type to which the engine rounds the weights of an adapter; known after `start`.

    The weights may be sent to the engine in this type. float32: it does not round them, or that is not known.
    """

    reports_return: bool = False
    """Whether `returned` waits until an unreachable engine again serves the version that it loaded last.

    If True, a set of replicas waits with `returned`; if False, it tries the engine from time to time.
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
        """Sample one completion under the loaded policy version. Cancelling the call frees its place in the engine.

        Raises:
            EngineError: The engine failed; other requests may still succeed.
        """

    @abstractmethod
    async def load(self, policy: PolicyVersion) -> None:
        """Switch to another policy version.

        Later requests use it. Requests in progress end under the version that they began with, so that each completion
        comes from one version. An engine that serves one version at a time waits for those requests.

        Raises:
            EngineError: The adapter cannot be loaded; the engine continues to serve the old version.
            ServiceUnavailableError: The engine is not reachable. A set of replicas excludes it until it has loaded the
                current version. `UnreachableEngineError`: if no replica is left, the run waits up to
                `train.sync_wait_s`.
        """

    async def returned(self) -> None:
        """Wait until an unreachable engine serves again. Default: return at once; see `reports_return`."""

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
        """Return the completion of each replica by its number, without use of a cache from an earlier version.

        An engine without replicas is number 0. Replicas that cannot be reached may be missing. Default: raises
        ConfigError, for engines with `probe_tolerance` None.

        Raises:
            ConfigError: The engine cannot be probed. This is the default.
            EngineError: A replica failed.
            ServiceUnavailableError: The engine is not reachable.
        """
        raise ConfigError(f"Engine {type(self).__name__} cannot be probed.")

    def lend(self) -> EngineLoan | None:
        """Keep the current version on the servers for other processes, which send them requests directly.

        Returns:
            The routes to the servers. None: direct requests are not possible, or not at this time. Default: None, for
            engines without such servers.
        """
        return None


class ChatEngine(Engine):
    """Base class of engines with messages in, one assistant turn out. `start`, `respond` and `close` are required."""

    @abstractmethod
    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """Return the next assistant turn, with `stop="full"` when the conversation leaves no room for a turn.

        Raises:
            EngineError: The engine failed.
        """
