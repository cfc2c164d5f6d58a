"""The `vllm` engine: implements the contract of token engines with a supervised or a running server."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from finqa_cli.contracts import EngineContext, EngineLoan, TokenEngine
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion
from finqa_plugins.engines._http.adapter_files import vocabulary, write_adapter
from finqa_plugins.engines._http.config import LOOPBACK, find_key
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines._http.refusals import NoAnswerError, away
from finqa_plugins.engines._http.served_engine import ServedTokenEngine
from finqa_plugins.engines._http.token_server import TokenServer
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.machine import has_gpu
from finqa_plugins.engines.vllm.readers_writer_lock import ReadersWriterLock
from finqa_plugins.engines.vllm.supervisor import Supervisor
from finqa_plugins.engines.vllm.vllm_command import SERVED_NAME, changes_weights, model_path, served_dtype, server_rank
from finqa_plugins.engines.vllm.vllm_control import Control, Weights, check_folder, check_replaceable

FLOAT32_TOLERANCE = 1e-4
"""Nats; 1e-6 was measured between vLLM and transformers on one CPU, and long sums differ more."""


class VllmEngine(TokenEngine):
    """A token engine on a vLLM server. The server batches continuously, so seats have no effect.

    A policy version is an adapter under its own name, so swaps do not wait for requests in progress. A version without
    adapter whose model is another folder (full training) is loaded in place, after the requests in progress.
    """

    def __init__(self, config: VllmEngineConfig | None, context: EngineContext) -> None:
        self._config = config or VllmEngineConfig()
        self._context = context
        self._gpu = has_gpu()
        self._requests = ReadersWriterLock()
        self._starting = asyncio.Lock()
        self._loading = asyncio.Lock()
        self._supervisor: Supervisor | None = None
        self._served: ServedTokenEngine | None = None
        self._control: Control | None = None
        self._weights: Weights | None = None
        self._neutral: tempfile.TemporaryDirectory[str] | None = None
        self._asleep = False
        self._closed = False
        self.sleeps = context.sleep
        self.loads_model = not self._config.addresses
        self.probe_tolerance = self._find_tolerance()
        self.adapter_dtype = self._find_adapter_dtype()

    async def start(self) -> None:
        """Starts the server, or finds the running one, and proves that it gives token ids and log-probabilities.

        Raises:
            ConfigError: Model, options, memory, devices or the server's abilities do not fit.
            AuthenticationError: The server refuses the key.
            ServiceUnavailableError: The server does not start or does not answer.
            EngineError: The engine was closed.
        """
        async with self._starting:
            if self._closed:
                raise EngineError("The engine is closed.")
            if self._served is not None:
                return
            check_folder(self._context.model)
            server_rank(self._context.lora_rank)
            if self._context.needs_tokens and not self._context.lora_rank:
                elsewhere = not _on_this_machine(self._config.addresses)
                check_replaceable(self._context.model, gpu=self._gpu or elsewhere)
            addresses = self._config.addresses
            if addresses:
                served = self._connect(self._own_address(addresses), key=None)
            else:
                supervisor = self._supervisor = Supervisor(
                    self._config,
                    self._context,
                    gpu=self._gpu,
                    busy=lambda: self._requests.readers > 0 and not self._asleep,
                )
                served = self._connect(await supervisor.start(), key=supervisor.key)
            try:
                await served.start()
                if self._control is not None and changes_weights(self._config, self._context):
                    await self._control.check()
                if await asyncio.to_thread(self._make_neutral):
                    await served.load(self._on_server(PolicyVersion(number=0, model=self._context.model)))
            except BaseException:
                await self._end(served)
                raise
            self._served = served

    async def generate(self, request: GenerateRequest) -> Completion:
        """Samples one completion under the loaded policy version. Cancellation frees its place.

        Raises:
            EngineError: The request failed, also after a retry on a restarted server if the engine started it.
            ServiceUnavailableError: The server failed more often than `restarts` allows.
        """
        served = self._open()
        async with self._requests.shared():
            if self._asleep:
                raise EngineError("The vLLM server sleeps.")
            completion = await served.generate(request)
        if self._supervisor is not None:
            self._supervisor.heard()
        return completion

    async def load(self, policy: PolicyVersion) -> None:
        """Switches to another policy version; see the class.

        Raises:
            EngineError: The version cannot be loaded; the old version keeps serving.
            UnreachableEngineError: A server that the engine did not start does not answer.
        """
        served = self._open()
        async with self._loading:
            if self._asleep:
                raise EngineError("The vLLM server sleeps.")
            folder, weights = model_path(policy.model), self._weights
            replaced = self._context.lora_rank == 0 and policy.adapter is None
            if replaced and weights is not None and folder != weights.folder:
                async with self._requests.exclusive():
                    if self._supervisor is not None:
                        await self._supervisor.revive()
                    try:
                        await weights.replace(folder)
                    except NoAnswerError as error:
                        raise (error if self._supervisor is not None else away(error)) from error
                    if self._supervisor is not None:
                        self._supervisor.serve(folder)
                    await served.load(replace(policy, model=self._context.model))
            else:
                await served.load(self._on_server(policy))

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        """The request's completion under the current version, without cached prefixes; see `ServedTokenEngine.probe`.

        Raises:
            EngineError: The server failed.
        """
        served = self._open()
        async with self._requests.shared():
            return await served.probe(request)

    def _find_tolerance(self) -> float | Literal["measured"]:
        """Return the largest difference to the learner's log-probabilities that rounding explains (nats).

        Without a GPU, server and learner both compute in float32. In bfloat16 every kernel rounds differently, so there
        the run measures the difference.
        """
        if self._config.probe_tolerance is not None:
            return self._config.probe_tolerance
        exact = not self._config.addresses and not self._gpu and served_dtype(self._config, gpu=False) == "float32"
        return FLOAT32_TOLERANCE if exact else "measured"

    def _find_adapter_dtype(self) -> Literal["float32", "bfloat16"]:
        """Return the type of an adapter's weights in the server.

        The server converts them to the type of the model by default (`lora_dtype="auto"` of `LoRAConfig`).
        """
        own = not self._config.addresses and not any(one.startswith("--lora-dtype") for one in self._config.extra_args)
        return "bfloat16" if own and served_dtype(self._config, gpu=self._gpu) == "bfloat16" else "float32"

    @property
    def seeded(self) -> bool:
        """Whether requests carry their seeds.

        vLLM derives the noise of unseeded requests from the seed of the server and their number, so that two servers
        with the same seed give the same completions (`SamplingStates` in vllm/v1/worker/gpu/sample/states.py, 0.32).
        A single server at a URL gets none: vLLM's older model runner samples seeded rows one by one.
        """
        if self._config.seeded is not None:
            return self._config.seeded
        return len(self._config.addresses) != 1

    async def sleep(self) -> None:
        """Frees the GPU. Idempotent.

        Raises:
            EngineError: The server failed.
            UnreachableEngineError: A server that the engine did not start does not answer.
        """
        served = self._open()
        async with self._loading:
            if self._control is None or self._asleep:
                return
            async with self._requests.exclusive():
                try:
                    await self._control.sleep()
                except NoAnswerError as error:
                    await self._revive(served, error)
                    await self._control.sleep()
                self._asleep = True

    async def wake(self) -> None:
        """Moves the weights back to the GPU; the server has the same version as before. Idempotent.

        Raises:
            EngineError: The server failed.
            UnreachableEngineError: A server that the engine did not start does not answer.
        """
        served = self._open()
        async with self._loading:
            if self._control is None or not self._asleep:
                return
            try:
                await self._control.wake()
            except NoAnswerError as error:
                await self._revive(served, error)  # a fresh server is awake
            self._asleep = False

    def lend(self) -> EngineLoan | None:
        """Lends the server; see `ServedTokenEngine.lend`. None if weights are replaced in place, or while it sleeps."""
        if self._served is None or self._asleep or not self._context.lora_rank:
            return None
        loan, supervisor = self._served.lend(), self._supervisor
        if loan is None or supervisor is None:
            return loan
        return replace(loan, heard=lambda replica: supervisor.heard())

    def usage(self, episode: str) -> Mapping[str, Any]:
        """What the episode used; see `ServedTokenEngine.usage`. Empty before `start`."""
        return self._served.usage(episode) if self._served is not None else {}

    @property
    def max_context(self) -> int:
        """Longest prompt plus completion in tokens; 0 before `start`."""
        return self._served.max_context if self._served is not None else 0

    @property
    def server_pid(self) -> int | None:
        """Process group of the server that the engine started; None when it started none."""
        return self._supervisor.pid if self._supervisor is not None else None

    async def close(self) -> None:
        """Ends a server that the engine started, with all its processes; leaves a running one. Idempotent."""
        self._closed = True
        async with self._starting:
            await self._end(self._served)
            self._served = None

    async def _revive(self, served: ServedTokenEngine, error: NoAnswerError) -> None:
        """Restarts the server if needed, and loads the current version again."""
        if self._supervisor is None:
            raise away(error) from error
        await self._supervisor.revive()
        await served.reload()

    def _open(self) -> ServedTokenEngine:
        if self._closed:
            raise EngineError("The engine is closed.")
        if self._served is None:
            raise EngineError("The engine is not started.")
        return self._served

    def _connect(self, address: str, *, key: SecretStr | None) -> ServedTokenEngine:
        connection = self._config.connection(address)
        client = Client(connection, key or find_key(connection), seed=self._context.seed, proxied=key is None)
        self._control = Control(client, timeout_s=self._config.sync_timeout_s)
        server = TokenServer(
            client,
            model=SERVED_NAME if self._supervisor is not None else None,
            folder=self._context.model,
            max_context=self._context.max_context,
            vocabulary=vocabulary(self._context.model),
            load_timeout_s=self._config.sync_timeout_s,
            seeded=self.seeded,
        )
        elsewhere = not _on_this_machine(self._config.addresses)
        self._weights = Weights(self._control, self._context.model, gpu=self._gpu or elsewhere)
        revive = self._supervisor.revive if self._supervisor is not None else None
        return ServedTokenEngine(server, context=self._context, tolerance=self.probe_tolerance, revive=revive, key=key)

    def _own_address(self, addresses: tuple[str, ...]) -> str:
        if len(addresses) != self._context.replicas:
            raise ConfigError(
                f"engine.options names {len(addresses)} servers, but there are {self._context.replicas} replicas.",
                remedy=f"--engine-replicas {len(addresses)}",
            )
        return addresses[self._context.replica]

    def _make_neutral(self) -> bool:
        """Makes an adapter that changes nothing, if the base model must be served under one; returns whether it did.

        vLLM's kernels for the CPU (lora/ops/torch_ops) read the index -1, "no adapter", as that of the last adapter: a
        request for the base model that shares a batch with requests for adapters is served with one of theirs, without
        an error (https://github.com/vllm-project/vllm/pull/48421; seen in 0.32). Kernels for GPUs skip that index.
        """
        if self._gpu or not _on_this_machine(self._config.addresses) or not self._context.lora_rank:
            return False
        logs = self._context.log_dir
        folder = logs if logs is not None and logs.is_dir() else None
        self._neutral = tempfile.TemporaryDirectory(prefix="finqa-neutral-", dir=folder)
        if not write_adapter(Path(self._neutral.name), self._context.model, rank=1, zeros=True):
            self._neutral.cleanup()
            self._neutral = None
        return self._neutral is not None

    def _on_server(self, policy: PolicyVersion) -> PolicyVersion:
        if policy.adapter is not None or self._neutral is None:
            return policy
        return replace(policy, adapter=Path(self._neutral.name))

    async def _end(self, served: ServedTokenEngine | None) -> None:
        try:
            if served is not None:
                await served.close()
        finally:
            if self._supervisor is not None:
                await self._supervisor.close()
            if self._neutral is not None:
                self._neutral.cleanup()


def _on_this_machine(addresses: tuple[str, ...]) -> bool:
    return all(urlsplit(address).hostname in LOOPBACK for address in addresses)
