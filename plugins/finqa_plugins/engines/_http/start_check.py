"""What a server must show before a run trusts it with tokens: one request for each promise, made and read here."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import AuthenticationError, ConfigError, EngineError
from finqa_cli.types import GenerateRequest, Sampling
from finqa_plugins.engines._http.adapter_files import write_adapter
from finqa_plugins.engines._http.completions import completion_body, read_completion, read_first_place
from finqa_plugins.engines._http.json_documents import BadReplyError
from finqa_plugins.engines._http.refusals import ControlError, NoAnswerError, PromptTooLongError
from finqa_plugins.engines._http.token_server import PROMPT, TokenServer
from finqa_plugins.engines._http.usage import Usage

T = TypeVar("T")

COOL = 0.5
LIKELIEST = 5
SPREAD = 0.01
"""Nats between the most likely tokens below which nothing is proven."""


@dataclass(frozen=True, slots=True)
class _Found(Generic[T]):
    """A reply, or what is wrong with it: a wrong reply is no passing failure here."""

    value: T | None
    reason: str = ""
    usage: Usage = field(default_factory=Usage)


async def check_tokens(server: TokenServer, model: str, *, remedy: str) -> None:
    """Proves that ids go in and come out with the log-probabilities of the distribution that they were drawn from.

    The distributions at two temperatures are compared: where differences between log-probabilities do not grow as the
    temperature falls, they are those of the untempered distribution (vLLM's default), and importance ratios would be
    wrong in every update (https://github.com/huggingface/trl/issues/4159).

    Raises:
        ConfigError: They do not; with the reason and how to start a server that does.
        AuthenticationError: The server refuses the key.
        NoAnswerError: It does not answer.
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
        except (AuthenticationError, NoAnswerError):
            raise
        except (ConfigError, EngineError) as error:
            found = _Found(None, error.message)
        except PromptTooLongError:
            found = _Found(None, "its context is too short for a prompt of 16 tokens")
        if found.value is None:
            raise ConfigError(
                f"The server at {server.url} gives no token ids and log-probabilities, so it cannot train or play an "
                f"adapter: {found.reason}",
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
        return "whether its log-probabilities follow the temperature cannot be told, for its tokens are equally likely"
    low, high = common[0], common[-1]
    if (cool[high] - cool[low]) * COOL < 0.75 * spread:
        return "its log-probabilities do not follow the temperature, so training on them would be wrong"
    if warm[high] < -0.05 and abs(cool[high] - warm[high] / COOL) < 0.01:
        return "it gives logits for log-probabilities"
    return ""


async def check_adapters(
    server: TokenServer, model: str, *, folder: str, rank: int, scratch: Path | None, remedy: str
) -> None:
    """Proves that adapters of the run's rank can be loaded and change what is served.

    Where the base model lies on this machine a small one is made, loaded and unloaded; else one is asked for that does
    not exist, which tells at least whether the server loads any.

    Raises:
        ConfigError: They cannot; with the reason and how to start a server that does.
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
            elsewhere = f" (if the server sees {seen} elsewhere, say where: engine.options.adapter_paths)"
            raise _no_adapters(server, words + (elsewhere if name in words else ""), remedy) from error
        try:
            if not is_made:
                raise _no_adapters(server, "it says that it loaded one that does not exist.", remedy)
            if await server.answer(name) == await server.answer(model):
                raise _no_adapters(server, "it loads them and serves the base model all the same.", remedy)
        finally:
            await server.unload_adapter(name)


def serve(context: EngineContext) -> str:
    """The command that starts a server as training needs it."""
    return (
        f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve {context.model} --enable-lora "
        f"--max-lora-rank {context.lora_rank} --max-loras {1 + context.versions} "
        "--logprobs-mode processed_logprobs; or --engine transformers"
    )


def _no_adapters(server: TokenServer, reason: str, remedy: str) -> ConfigError:
    return ConfigError(f"The server at {server.url} cannot load adapters: {reason}", remedy=remedy)
