"""Keeps one server running: starts it, checks that it answers and produces tokens, restarts it if it died or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog
from pydantic import SecretStr

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError, EngineError, FinqaError, ServiceUnavailableError
from finqa_plugins.engines._http.config import ServerConfig
from finqa_plugins.engines._http.transport import PassingError, Transport
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.diagnosis import Death, Need, explain, last_words, need
from finqa_plugins.engines.vllm.machine import remedy
from finqa_plugins.engines.vllm.vllm_command import Launch, launch, listens_at, model_path, served_dtype, server_rank
from finqa_plugins.engines.vllm.vllm_process import ServerProcess, free_port

log = structlog.get_logger(__name__)

_COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")
"""Prometheus counters of vLLM that grow with its work (vllm/v1/metrics/loggers.py)."""

_REQUESTS = ("vllm:num_requests_running", "vllm:num_requests_waiting")
"""Gauges of the requests in the server, from the same file."""

_LONGEST_STEP = 0.6
"""Largest step of the clock as a share of `patience_s`: a quarter each for health and counters, and a pause."""


class Pulse:
    """Health checks of one server, on its own connections: those for requests may all be in use.

    Args:
        connection: The server.
        key: Key of the server.
        busy: Whether requests are in progress.
        patience_s: Seconds without an answer, or without a token for waiting requests, until a server counts as hung.
    """

    def __init__(
        self, connection: ServerConfig, key: SecretStr, *, busy: Callable[[], bool], patience_s: float
    ) -> None:
        self._transport = Transport(connection, key, proxied=False)
        self._busy = busy
        self._patience_s = patience_s
        self._work: float | None = None
        self._watched_s = 0.0
        self.forget()

    def forget(self) -> None:
        """Starts to measure again, because the server was just started."""
        self._seen = time.monotonic()
        self._answered = self._worked = self._watched_s

    def heard(self) -> None:
        """Records that a completion came: an overloaded server may not answer health checks, but is running."""
        self._answered = self._worked = self._now()

    async def answers(self, timeout_s: float) -> bool:
        """Whether the server reports that it is healthy. Never raises."""
        try:
            return (await self._transport.send("GET", "/health", timeout_s=timeout_s, root=True)).status == 200
        except PassingError:
            return False

    async def look(self) -> str:
        """Checks the server; returns what is wrong, "" if nothing. An overloaded server has `patience_s` to answer."""
        now = self._now()
        if not await self.answers(self._patience_s / 4):
            silent = self._now() - self._answered
            return f"it has not answered for {silent:.0f} s" if silent >= self._patience_s else ""
        self._answered = now
        work, asked = await self._work_done()
        # The API may answer while the process that computes hangs.
        if work is None or work != self._work or not (asked or self._busy()):
            self._work, self._worked = work, now
        idle = now - self._worked
        return f"it has produced no token for waiting requests for {idle:.0f} s" if idle >= self._patience_s else ""

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    def _now(self) -> float:
        """Seconds on a clock of limited steps: while our own event loop is busy, we cannot see the server answer."""
        now = time.monotonic()
        self._watched_s += min(now - self._seen, self._patience_s * _LONGEST_STEP)
        self._seen = now
        return self._watched_s

    async def _work_done(self) -> tuple[float | None, bool]:
        """The sum of its counters (None: unknown), and whether it has requests, also of processes it is lent to."""
        try:
            answer = await self._transport.send("GET", "/metrics", timeout_s=self._patience_s / 4, root=True)
        except PassingError:
            return None, False
        lines = answer.data.decode(errors="replace").splitlines()
        try:
            counts = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(_COUNTERS)]
            asked = any(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_REQUESTS))
        except ValueError:
            return None, False
        return sum(counts) if counts else None, asked


START_POLL_S = 0.2
START_ANSWER_S = 5.0
PORT_TRIES = 3
LOOKS_PER_PATIENCE = 12
"""Health checks in `health_timeout_s`."""
FAILED_CHECKS = 2
"""Health checks before a restart: the first may fail only because our own event loop was busy."""


class Supervisor:
    """Runs one server, which has the same address and key after restarts.

    Args:
        config: The options.
        context: What the run needs from its engine.
        gpu: Whether the server computes on a GPU.
        busy: Whether requests are in progress.
    """

    def __init__(
        self,
        config: VllmEngineConfig,
        context: EngineContext,
        *,
        gpu: bool,
        busy: Callable[[], bool],
    ) -> None:
        self._config = config
        self._context = context
        self._gpu = gpu
        self._busy = busy
        self.key = SecretStr(secrets.token_urlsafe(24))
        self._temporary = None if context.log_dir else Path(tempfile.mkdtemp(prefix="finqa-vllm-"))
        folder = (self._temporary or context.log_dir or Path()).absolute()
        self._log_path = folder / f"vllm-{context.replica}.log"
        self._launch: Launch | None = None
        self._starts = 0
        self._process: ServerProcess | None = None
        self._pulse: Pulse | None = None
        self._watch: asyncio.Task[None] | None = None
        self._revival: asyncio.Task[None] | None = None
        self._wrong = ""
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Process group of the server; None before it is started."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> str:
        """Starts the server and waits until it answers; returns the address of its API.

        Raises:
            ConfigError: Memory does not suffice, or an option is wrong.
            MissingDependencyError: vllm is not installed.
            ServiceUnavailableError: The server died for another reason or was not ready in time; with its output.
        """
        python = self._config.python
        if python is not None and shutil.which(str(python.expanduser())) is None:
            raise ConfigError(
                f"engine.options.python is not a program: {python}.",
                remedy=remedy(self._config, self._context.home),
            )
        for attempt in range(1, PORT_TRIES + 1):
            launched = self._launch_at(free_port(listens_at(self._config, self._context)))
            connection = self._config.connection(launched.base_url)
            self._pulse = Pulse(connection, self.key, busy=self._busy, patience_s=self._config.health_timeout_s)
            try:
                await self._spawn(launched.port)
                break
            except ServiceUnavailableError:
                taken = self._process is not None and "address already in use" in self._process.output().lower()
                await self._end()
                if not taken or attempt == PORT_TRIES:
                    raise
            except BaseException:
                await self._end()
                raise
        self._watch = asyncio.create_task(self._watch_it())
        return launched.base_url

    def serve(self, model: str) -> None:
        """Makes later starts load the weights of this folder, which the running server has already loaded."""
        self._context = replace(self._context, model=model)

    def heard(self) -> None:
        """A completion came from the server."""
        if self._pulse is not None:
            self._pulse.heard()

    async def revive(self) -> None:
        """Returns once a server answers; restarts it if it is dead or hung. Concurrent callers share a restart.

        Raises:
            ServiceUnavailableError: The server died more often than the settings allow, or does not start again.
            EngineError: The engine is closed.
        """
        if self._revival is None or self._revival.done():
            self._revival = asyncio.create_task(self._revive())
        try:
            # A caller that is cancelled must not stop the restart for the others.
            await asyncio.shield(self._revival)
        except asyncio.CancelledError:
            if self._revival.cancelled():
                raise EngineError("The engine is closed.") from None
            raise

    async def close(self) -> None:
        """Ends the server and all its processes. Idempotent. The log of a server that failed is kept."""
        sound = self._process is not None and self._process.running() and not self._wrong
        for task in (self._watch, self._revival):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, FinqaError):
                    await task
        await self._end()
        self._launch = None
        if self._temporary is not None and (sound or self._process is None):
            shutil.rmtree(self._temporary, ignore_errors=True)

    async def _revive(self) -> None:
        process, pulse = self._process, self._pulse
        if self._launch is None or process is None or pulse is None:
            raise EngineError("The engine is closed or was not started.")
        for _ in range(FAILED_CHECKS):
            if process.running() and not self._wrong and await pulse.answers(self._config.health_timeout_s / 4):
                return
        # Dying takes a server a moment: its connections close before it is gone.
        await process.stop()
        reason = self._wrong or f"it ended: {last_words(process.output())}"
        if self.restarts >= self._config.restarts:
            raise ServiceUnavailableError(
                f"The vLLM server failed again after {self.restarts} restarts: {reason} Its output is in "
                f"{self._log_path}.",
                remedy="fix the reported problem, then finqa train --resume RUN; or a higher engine.options.restarts",
            )
        self.restarts += 1
        # Log: A server that finqa started ended or hung; at most `engine.options.restarts` times.
        log.warning("the vLLM server is restarted", reason=reason, restart=self.restarts, of=self._config.restarts)
        await self._spawn(self._launch.port)

    async def _spawn(self, port: int) -> None:
        assert self._pulse is not None
        self._launch = self._launch_at(port)
        self._starts += 1
        self._wrong = ""
        process = self._process = ServerProcess(self._launch, self._log_path)
        began = time.monotonic()
        while not await self._pulse.answers(START_ANSWER_S):
            if not process.running():
                death = Death(
                    status=process.status,
                    output=process.output(),
                    log_path=self._log_path,
                    python=self._launch.arguments[0],
                )
                raise explain(death, self._config, self._context, self._need())
            if time.monotonic() - began > self._config.start_timeout_s:
                said = last_words(process.output())
                await process.stop()
                raise ServiceUnavailableError(
                    f"The vLLM server was not ready in {self._config.start_timeout_s:g} s. Its last output: {said} All "
                    f"of its output is in {self._log_path}.",
                    remedy=f"--set engine.options.start_timeout_s={2 * self._config.start_timeout_s:g}",
                )
            await asyncio.sleep(START_POLL_S)
        if not process.running():  # another process answers at its port
            raise ServiceUnavailableError(f"The vLLM server ended at start: {last_words(process.output())}")
        self._pulse.forget()
        # Log: A server that finqa started accepts requests.
        log.info("the vLLM server is ready", seconds=round(time.monotonic() - began, 1), log=str(self._log_path))

    async def _watch_it(self) -> None:
        """Ends a server that hangs, so that its requests fail and are retried after `revive` has restarted it."""
        assert self._pulse is not None
        while True:
            await asyncio.sleep(self._config.health_timeout_s / LOOKS_PER_PATIENCE)
            process = self._process
            reviving = self._revival is not None and not self._revival.done()
            if process is None or reviving or self._wrong or not process.running():
                continue
            if wrong := await self._pulse.look():
                self._wrong = f"{wrong}."
                # Log: A server that finqa started does not answer its health checks.
                log.warning("the vLLM server hangs and is stopped", reason=wrong)
                await process.stop()

    def _launch_at(self, port: int) -> Launch:
        key = self.key.get_secret_value()
        context = self._context.restarted(self._starts)
        return launch(self._config, context, port=port, key=key, gpu=self._gpu, environ=os.environ)

    async def _end(self) -> None:
        if self._process is not None:
            await self._process.stop()
        if self._pulse is not None:
            await self._pulse.close()

    def _need(self) -> Need | None:
        context, config = self._context, self._config
        return need(
            Path(model_path(context.model)),
            dtype=served_dtype(config, gpu=self._gpu),
            length=context.max_context or None,
            sequences=config.max_num_seqs,
            tensor_parallel_size=context.tensor_parallel_size,
            lora_rank=server_rank(context.lora_rank) if context.lora_rank else 0,
            loras=config.max_loras or context.versions + 1,
        )
