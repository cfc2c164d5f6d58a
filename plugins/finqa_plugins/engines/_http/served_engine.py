"""A token engine on a server that takes policy versions as LoRA adapters over HTTP.

Each version is an adapter under a name that was never used before: vLLM keeps adapters and cached prefixes by name. A
request names its version, so a swap needs no pause, and requests in progress finish with the version that they started
with.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import structlog
from pydantic import SecretStr

from finqa_cli.contracts import EngineContext, EngineLoan, EngineRoute, TokenEngine
from finqa_cli.errors import AuthenticationError, ConfigError, EngineError
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion, Sampling
from finqa_plugins.engines._http.adapter_files import write_adapter
from finqa_plugins.engines._http.completions import completion_body, read_completion, read_first_place
from finqa_plugins.engines._http.config import ServerConfig
from finqa_plugins.engines._http.http_access import HttpAccess, complete
from finqa_plugins.engines._http.json_documents import BadReplyError
from finqa_plugins.engines._http.refusals import (
    ControlError,
    NoAnswerError,
    PromptTooLongError,
    RateLimitError,
    UnknownModelError,
    away,
)
from finqa_plugins.engines._http.token_server import PROMPT, ServerFacts, TokenServer
from finqa_plugins.engines._http.usage import Ledger, Price, Usage
from finqa_plugins.engines._http.versions import Version, Versions

log = structlog.get_logger(__name__)


Revive = Callable[[], Awaitable[None]]
"""Makes the server answer again (restarts it if it is dead or hung); raises EngineError if it cannot."""


class ServedTokenEngine(TokenEngine):
    """A token engine on a server that another process runs; its requests are metered and its weights probed.

    A prompt that leaves no room in the context is the episode's limit, not a fault: it is answered with an empty
    completion and stop `length`. A server that lost the adapter in a restart gets it again, once per request.

    Args:
        server: The server, reachable when `start` is called.
        context: Settings and folders of the run; `lora_rank` is the largest rank that the server takes.
        tolerance: See `TokenEngine.probe_tolerance`.
        revive: Called, by one request at a time, when the server does not answer; None: such requests fail.
        price: Price of the model's tokens.
        key: Key of a server that finqa started, for processes that it is lent to; None: they find it themselves.
    """

    def __init__(
        self,
        server: TokenServer,
        *,
        context: EngineContext,
        tolerance: float | Literal["measured"] | None,
        revive: Revive | None = None,
        price: Price | None = None,
        key: SecretStr | None = None,
    ) -> None:
        self._server = server
        self._key = key
        self._context = context
        self.probe_tolerance = tolerance
        self._revive = revive
        self._ledger = Ledger(price, model=context.model)
        server.client.retried = self._ledger.retried
        self._changing = asyncio.Lock()
        self._facts: ServerFacts | None = None
        self._versions: Versions | None = None
        self._restorations = 0
        self._closed = False

    async def start(self) -> None:
        """Checks that the server does what training needs (see `check_tokens` and `check_adapters`). Idempotent.

        Raises:
            ConfigError: The server does not, or does not have the model.
            AuthenticationError: The server refuses the key.
            ServiceUnavailableError: The server does not answer.
            EngineError: The engine was closed.
        """
        async with self._changing:
            if self._closed:
                raise EngineError("The engine is closed.")
            if self._versions is not None:
                return
            server, context = self._server, self._context
            facts = await server.facts()
            remedy = serve(context)
            await check_tokens(server, facts.model, remedy=remedy)
            if not facts.max_context:
                raise ConfigError(
                    f"The server at {server.url} does not report the length of its context (max_model_len).",
                    remedy=remedy,
                )
            if context.lora_rank:
                scratch = next((one for one in _folders(context.log_dir) if one.is_dir()), None)
                await check_adapters(
                    server, facts.model, folder=context.model, rank=context.lora_rank, scratch=scratch, remedy=remedy
                )
            self._facts = facts
            self._versions = await Versions.begin(server, base=facts.model, model=context.model, rank=context.lora_rank)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Samples one completion under the loaded policy version. Cancellation frees its place.

        Raises:
            EngineError: The engine is not started or closed, or the server failed for this request.
            FinqaError: Every request would fail: the key or the account.
        """
        return await self._generate(request)

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        """The completion under replica number 0, computed without any cached prefix.

        Raises:
            EngineError: As `generate`.
            UnreachableEngineError: The server does not answer, and the engine did not start it.
        """
        try:
            return {0: await self._generate(request, {"cache_salt": uuid.uuid4().hex})}
        except NoAnswerError as error:
            raise away(error) from error

    async def load(self, policy: PolicyVersion) -> None:
        """Switches to another policy version while requests are in progress.

        Raises:
            EngineError: The adapter is damaged, of another rank or base, or the server refuses or ignores it; the old
                version keeps serving.
            UnreachableEngineError: The server does not answer, and the engine did not start it.
        """
        async with self._changing:
            versions = self._serving()
            try:
                version = await versions.make(policy)
            except NoAnswerError as error:
                if self._revive is None:
                    raise away(error) from error
                await self._revive()
                await versions.give(versions.current)
                self._restorations += 1
                version = await versions.make(policy)
            versions.switch(version)

    async def reload(self) -> None:
        """Gives the current adapter to a server that forgot it, after a restart or a deep sleep.

        Raises:
            EngineError: The server refuses it or does not answer.
        """
        async with self._changing:
            versions = self._serving()
            await versions.give(versions.current)

    @property
    def max_context(self) -> int:
        """Longest prompt plus completion in tokens; 0 before `start`."""
        return self._facts.max_context if self._facts else 0

    def usage(self, episode: str) -> Mapping[str, Any]:
        """What an episode used, all its restarts together: `requests`, tokens and `cost_usd` (None without a price)."""
        return self._ledger.episode(episode)

    def lend(self) -> EngineLoan | None:
        """Lends the server and keeps the current version loaded until the loan ends.

        Returns None before `start`, and if a limit per minute is set, because a single process must count.
        """
        connection = self._server.client.config
        limited = connection.requests_per_minute is not None or connection.tokens_per_minute is not None
        if self._versions is None or limited:
            return None
        version, kept = self._versions.current, ExitStack()
        kept.enter_context(self._versions.used(version))
        route = EngineRoute(server=self._access(), served_name=version.name, policy_version=version.number)
        return EngineLoan(routes=(route,), end=kept.close)

    async def close(self) -> None:
        """Unloads the adapters of the server, reports what was used and closes the connections. Idempotent."""
        if self._closed:
            return
        self._closed = True
        versions, self._versions = self._versions, None
        if versions is not None:
            self._ledger.report("tokens used in all")
            await versions.end()
        await self._server.close()

    def _access(self) -> HttpAccess:
        connection = self._server.client.config
        return HttpAccess(
            connection=ServerConfig(**{name: getattr(connection, name) for name in ServerConfig.model_fields}),
            key=self._key,
            seed=self._server.client.seed,
            max_context=self.max_context,
            vocabulary=self._server.vocabulary,
            seeded=self._server.seeded,
            price=self._ledger.price,
            model=self._context.model,
        )

    def _serving(self) -> Versions:
        if self._versions is None:
            raise EngineError("The engine is closed." if self._closed else "The engine is not started.")
        return self._versions

    async def _generate(self, request: GenerateRequest, extra: Mapping[str, Any] | None = None) -> Completion:
        versions, restorations = self._serving(), self._restorations
        version = versions.current
        try:
            return await self._ask(version, request, extra)
        except (NoAnswerError, UnknownModelError) as failure:
            await self._restore(failure, version, restorations)
        try:
            return await self._ask(self._serving().current, request, extra)
        except UnknownModelError as error:
            raise EngineError(f"The server unloaded an adapter twice: {error.message}") from error

    async def _ask(self, version: Version, request: GenerateRequest, extra: Mapping[str, Any] | None) -> Completion:
        with self._serving().used(version):
            return await complete(
                self._server,
                request,
                served_name=version.name,
                version=version.number,
                max_context=self.max_context,
                ledger=self._ledger,
                extra=extra,
            )

    async def _restore(self, failure: NoAnswerError | UnknownModelError, lost: Version, seen: int) -> None:
        """Revives the server if needed and loads the current adapter again, once for requests that failed together."""
        async with self._changing:
            if self._restorations != seen:
                return
            versions = self._serving()
            if isinstance(failure, NoAnswerError):
                if self._revive is None:
                    raise failure
                await self._revive()
            elif self._facts is None or lost.name == self._facts.model:
                raise failure  # the server now serves another base model
            # Log: A vLLM server lost an adapter, because it was restarted.
            log.warning("policy version loaded again", version=versions.current.number, reason=failure.message)
            await versions.give(versions.current)
            self._restorations += 1


def _folders(log_dir: Path | None) -> tuple[Path, ...]:
    """Folders of the run's files, nearest first: a server on another machine probably sees them too."""
    return () if log_dir is None else (log_dir, log_dir.parent)


T = TypeVar("T")

COOL = 0.5
"""Temperature of the second request, which is compared with the one at temperature 1."""
LIKELIEST = 5
"""Number of most likely tokens that are compared."""
SPREAD = 0.01
"""Difference in nats between these tokens that is too small to prove anything."""


@dataclass(frozen=True, slots=True)
class _Found(Generic[T]):
    """A reply, or what is wrong with it: a wrong reply is not retried here."""

    value: T | None
    reason: str = ""
    usage: Usage = field(default_factory=Usage)


async def check_tokens(server: TokenServer, model: str, *, remedy: str) -> None:
    """Proves that ids go in and come out with the log-probabilities of the distribution that they were drawn from.

    The distributions at two temperatures are compared: where differences between log-probabilities do not grow as the
    temperature falls, they are those of the untempered distribution (vLLM's default), and importance ratios would be
    wrong in every update (https://github.com/huggingface/trl/issues/4159).

    Raises:
        ConfigError: The server does not do this; with the reason and how to start a server that does.
        AuthenticationError: The server refuses the key.
        NoAnswerError: The server does not answer.
        RateLimitError: The server's rate limit was exceeded in all tries.
    """

    async def ask(temperature: float, tokens: int, read: Callable[[Mapping[str, Any]], T], top: int) -> T:
        sampling = Sampling(temperature=temperature, max_tokens=tokens)
        request = GenerateRequest(key="start check", token_ids=PROMPT, sampling=sampling)
        body = {**completion_body(request, model=model, max_tokens=tokens), "logprobs": top}

        def tolerant(document: Mapping[str, Any]) -> _Found[T]:
            try:
                return _Found(read(document))
            except BadReplyError as error:
                return _Found(None, str(error))

        try:
            found = await server.client.complete(body, key=request.key, limit=tokens, read=tolerant)
        except (AuthenticationError, NoAnswerError, RateLimitError):
            raise
        except (ConfigError, EngineError) as error:
            found = _Found(None, error.message)
        except PromptTooLongError:
            found = _Found(None, "its context is too short for a prompt of 16 tokens")
        if found.value is None:
            raise ConfigError(
                f"The server at {server.url} returns no token ids and log-probabilities, so it cannot "
                f"train or play an adapter: {found.reason}",
                remedy=remedy,
            )
        return found.value

    plain = GenerateRequest(key="", token_ids=PROMPT, sampling=Sampling(max_tokens=4))
    await ask(1.0, 4, lambda document: read_completion(document, plain, max_tokens=4), 0)
    warm = await ask(1.0, 1, read_first_place, LIKELIEST)
    cool = await ask(COOL, 1, read_first_place, LIKELIEST)
    if reason := wrong_distribution(warm, cool):
        raise ConfigError(f"The server at {server.url} cannot train: {reason}", remedy=remedy)


def wrong_distribution(warm: Mapping[str, float], cool: Mapping[str, float]) -> str:
    """Why these are not the log-probabilities of one distribution at temperatures 1 and `COOL`; empty if they are.

    With log-probabilities l at temperature 1, those at T are l / T - log(sum(exp(l / T))). Differences between tokens
    grow by 1 / T then, and the common shift is at least -log(max(exp(l))).
    """
    common = sorted(warm.keys() & cool.keys(), key=warm.__getitem__)
    if len(common) < 2 or (spread := warm[common[-1]] - warm[common[0]]) < SPREAD:
        return (
            "whether its log-probabilities use the temperature cannot be determined, because its tokens "
            "are equally likely"
        )
    low, high = common[0], common[-1]
    if (cool[high] - cool[low]) * COOL < 0.75 * spread:
        return "its log-probabilities do not use the temperature, so training on them would be wrong"
    if warm[high] < -0.05 and abs(cool[high] - warm[high] / COOL) < 0.01:
        return "it returns logits instead of log-probabilities"
    return ""


async def check_adapters(
    server: TokenServer, model: str, *, folder: str, rank: int, scratch: Path | None, remedy: str
) -> None:
    """Proves that adapters of the run's rank can be loaded and change what is served.

    If the base model is on this machine, a small adapter is made, loaded and unloaded. Otherwise the server is asked to
    load an adapter that does not exist, which at least shows whether it loads adapters.

    Raises:
        ConfigError: The server cannot do this; with the reason and how to start a server that can.
        EngineError: The server does not answer.
    """
    name = f"finqa-check-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(prefix="finqa-adapter-", dir=scratch) as made:
        is_made = await asyncio.to_thread(write_adapter, Path(made), folder, rank=rank)
        path = Path(made) if is_made else Path(made) / name
        try:
            await server.load_adapter(name, path)
        except ControlError as error:
            words = error.refusal.text
            if not is_made and name in words:
                return
            seen = server.seen_by_server(path)
            elsewhere = f" (if the server has {seen} at another path, set engine.options.adapter_paths)"
            raise ConfigError(
                _no_adapters(server, words + (elsewhere if name in words else "")), remedy=remedy
            ) from error
        try:
            if not is_made:
                raise ConfigError(
                    _no_adapters(server, "it reports success for an adapter that does not exist."), remedy=remedy
                )
            if await server.answer(name) == await server.answer(model):
                reason = "it loads them, but still serves the base model."
                raise ConfigError(_no_adapters(server, reason), remedy=remedy)
        finally:
            await server.unload_adapter(name)


def serve(context: EngineContext) -> str:
    """The command that starts a server as training needs it."""
    return (
        f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve {context.model} --enable-lora "
        f"--max-lora-rank {context.lora_rank} --max-loras {1 + context.versions} "
        "--logprobs-mode processed_logprobs; or --engine transformers instead of --set engine.options.base_url"
    )


def _no_adapters(server: TokenServer, reason: str) -> str:
    return f"The server at {server.url} cannot load adapters: {reason}"
