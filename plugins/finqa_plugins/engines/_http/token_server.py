"""Requests to a token server, one method each: completions of token ids, and loading and unloading of adapters."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.types import GenerateRequest, Sampling
from finqa_plugins.engines._http.completions import TokenReply, completion_body, read_completion
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines._http.json_documents import BadReplyError, base_model
from finqa_plugins.engines._http.refusals import ControlError, PromptTooLongError

LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"

PROMPT = tuple(range(1, 17))
"""A prompt of ids that every vocabulary has."""

ANSWER_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """`model`: name of the base model on the server; `max_context`: longest sequence in tokens, 0 if not reported."""

    model: str
    max_context: int


class TokenServer:
    """One server, its base model, and its adapters by name.

    Args:
        client: The connection.
        model: Name of the base model on the server; None: found by `folder` among those that it lists.
        folder: The policy's model as the run knows it (folder or hub id).
        max_context: Longest sequence to use, 0 for the server's own limit.
        vocabulary: Number of token ids; None: not known here, so the server judges ids.
        paths: Folder here -> the same folder as the server sees it, for adapters.
        load_timeout_s: Seconds for loading an adapter.
        seeded: Whether requests carry their seeds.
    """

    def __init__(
        self,
        client: Client,
        *,
        model: str | None,
        folder: str,
        max_context: int = 0,
        vocabulary: int | None = None,
        paths: Mapping[str, str] | None = None,
        load_timeout_s: float = 120.0,
        seeded: bool = True,
    ) -> None:
        self.client = client
        self.url = client.config.base_url
        self._model = model
        self._folder = folder
        self._max_context = max_context
        self.vocabulary = vocabulary
        self._paths = dict(paths or {})
        self._load_timeout_s = load_timeout_s
        self.seeded = seeded

    async def facts(self) -> ServerFacts:
        """What the server lists.

        Raises:
            ConfigError: It lists nothing, or not the base model.
            AuthenticationError: It refuses the key.
            ServiceUnavailableError: The server does not answer.
        """
        cards = await self.client.listing()
        if cards is None:
            raise ConfigError(
                f"The server at {self.url} lists no models, so it is unknown what it serves.",
                remedy="--set engine.options.base_url=..., which ends in /v1 for most servers",
            )
        card = base_model(cards, name=self._model, folder=self._folder, url=self.url)
        limit = min(filter(None, (card.max_context, self._max_context)), default=0)
        return ServerFacts(model=card.name, max_context=limit)

    async def generate(
        self,
        request: GenerateRequest,
        *,
        served_name: str,
        max_tokens: int,
        extra: Mapping[str, Any] | None = None,
    ) -> TokenReply:
        """One completion under the model or adapter `served_name`.

        Raises:
            PromptTooLongError: The server's context is shorter than it reported.
            UnknownModelError: The server does not have `served_name`.
            NoAnswerError: The server does not answer, or gives nothing usable.
            EngineError: The request is refused.
        """
        vocabulary = self.vocabulary
        if not request.token_ids or (vocabulary is not None and not max(request.token_ids) < vocabulary):
            raise EngineError(
                f"Request {request.key!r} has no token ids or some that are not in the model's vocabulary of "
                f"{vocabulary}; were they encoded with another model's tokenizer?"
            )

        def read(document: Mapping[str, Any]) -> TokenReply:
            reply = read_completion(document, request, max_tokens=max_tokens)
            if vocabulary is not None and max(reply.token_ids) >= vocabulary:
                raise BadReplyError(f"id {max(reply.token_ids)} is not in the model's vocabulary of {vocabulary}")
            return reply

        return await self.client.complete(
            completion_body(request, model=served_name, max_tokens=max_tokens, seeded=self.seeded) | dict(extra or {}),
            key=request.key,
            limit=max_tokens,
            read=read,
        )

    async def answer(self, served_name: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """What a model or adapter generates for `PROMPT`, greedily and without a cached prefix.

        Returns [4] token ids and [4] log-probabilities in nats, which differ between models and adapters. vLLM's
        `prompt_logprobs` are not used: with adapters they are wrong, and beside other requests they crash its engine
        (https://github.com/vllm-project/vllm/issues/16668).

        Raises:
            UnknownModelError: The server does not have `served_name`.
            NoAnswerError: The server does not answer, or gives nothing usable.
            EngineError: The request is refused.
        """
        sampling = Sampling(temperature=0.0, max_tokens=ANSWER_TOKENS)
        request = GenerateRequest(key=f"answer of {served_name}", token_ids=PROMPT, sampling=sampling)
        uncached = {"cache_salt": uuid.uuid4().hex}
        try:
            reply = await self.generate(request, served_name=served_name, max_tokens=ANSWER_TOKENS, extra=uncached)
        except PromptTooLongError as error:
            raise EngineError(
                f"The context of {self.url} is too short for {len(PROMPT) + ANSWER_TOKENS} tokens."
            ) from error
        return reply.token_ids, reply.logprobs

    async def load_adapter(self, name: str, path: Path) -> None:
        """Loads an adapter as `name`. Idempotent for the same path.

        Raises:
            EngineError: The server refused it, in its own words, or did not answer.
        """
        body = {"lora_name": name, "lora_path": self.seen_by_server(path)}
        try:
            await self.client.post(LOAD, body, timeout_s=self._load_timeout_s)
        except ControlError as error:
            if "already been loaded" not in error.refusal.text:
                raise

    async def unload_adapter(self, name: str) -> None:
        """Unloads an adapter; does nothing if the server does not know it.

        Raises:
            EngineError: The server refused or did not answer.
        """
        try:
            await self.client.post(UNLOAD, {"lora_name": name}, timeout_s=self._load_timeout_s)
        except ControlError as error:
            if error.refusal.status != 404:
                raise

    def seen_by_server(self, path: Path) -> str:
        """The folder's path on the server's file system, by the longest folder of `paths` that contains it."""
        here = path.resolve()
        found = [(Path(local).resolve(), there) for local, there in self._paths.items()]
        inside = [(local, there) for local, there in found if here.is_relative_to(local)]
        if not inside:
            return str(here)
        local, there = max(inside, key=lambda pair: len(pair[0].parts))
        return str(PurePosixPath(there, here.relative_to(local).as_posix()))

    async def close(self) -> None:
        """Closes the connections."""
        await self.client.close()
