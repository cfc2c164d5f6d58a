"""Requests one completion from a token server, for the engine and for other processes that use its server.

A client in another process uses the same connection, checks and retries as the engine. It loads no adapters: the
served name in a request selects the policy version, and names are never used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from finqa_cli.contracts import EngineRoute, ServerAccess, ServerClient
from finqa_cli.types import Completion, GenerateRequest
from finqa_plugins.engines._http.completions import TokenReply
from finqa_plugins.engines._http.config import ServerConfig, find_key
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines._http.refusals import PromptTooLongError
from finqa_plugins.engines._http.token_server import TokenServer
from finqa_plugins.engines._http.usage import Ledger, Price


async def complete(
    server: TokenServer,
    request: GenerateRequest,
    *,
    served_name: str,
    version: int,
    max_context: int,
    ledger: Ledger,
    extra: Mapping[str, Any] | None = None,
) -> Completion:
    """One completion, limited to the room in the context; empty, with stop `length`, if there is none.

    Args:
        server: The server.
        request: The request.
        served_name: Name of the version on the server.
        version: Number of the version.
        max_context: Longest prompt plus completion.
        ledger: Records the tokens used.
        extra: Further fields of the request.

    Raises:
        FinqaError: As `TokenServer.generate`.
    """

    async def send(max_tokens: int) -> TokenReply:
        return await server.generate(request, served_name=served_name, max_tokens=max_tokens, extra=extra)

    full = Completion(token_ids=(), logprobs=(), stop="length", policy_version=version)
    room = max_context - len(request.token_ids)
    if room <= 0:
        return full
    limit = min(request.sampling.max_tokens, room)
    try:
        reply = await send(limit)
    except PromptTooLongError as error:
        if error.room is None or not 0 < error.room < limit:
            return full
        try:
            reply = await send(error.room)
        except PromptTooLongError:
            return full
    ledger.add(request.key, reply.usage.estimated(len(request.token_ids), len(reply.token_ids)))
    return Completion(token_ids=reply.token_ids, logprobs=reply.logprobs, stop=reply.stop, policy_version=version)


class HttpServerClient(ServerClient):
    """A client of one server."""

    def __init__(self, server: TokenServer, *, max_context: int, ledger: Ledger) -> None:
        self._server, self._max_context, self._ledger = server, max_context, ledger

    async def generate(self, request: GenerateRequest, route: EngineRoute) -> Completion:
        """See `ServerClient`; failures are retried as in the engine."""
        return await complete(
            self._server,
            request,
            served_name=route.served_name,
            version=route.policy_version,
            max_context=self._max_context,
            ledger=self._ledger,
        )

    def usage(self, episode: str) -> Mapping[str, Any]:
        """What the episode used through this client; empty if nothing."""
        return self._ledger.episode(episode) if self._ledger.knows(episode) else {}

    async def close(self) -> None:
        """Closes the connections."""
        await self._server.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess(ServerAccess):
    """What a client needs to know about a server.

    Attributes:
        connection: Address and limits, and the key if the settings contain it.
        key: Key of a server that finqa started, which no environment variable contains; None: see `find_key`.
        seed: Seed of the waits between retries.
        max_context: Longest prompt plus completion.
        vocabulary: See `TokenServer`.
        seeded: See `TokenServer`.
        price: Price of the model's tokens.
        model: The run's name of the model.
    """

    connection: ServerConfig
    key: SecretStr | None
    seed: int
    max_context: int
    vocabulary: int | None
    seeded: bool
    price: Price | None
    model: str

    @property
    def host(self) -> str:
        """Host name of the address."""
        return self.connection.host

    def connect(self, processes: int) -> ServerClient:
        """A client with its share of the simultaneous requests.

        Raises:
            AuthenticationError: The variable with the key is not set here.
        """
        places = max(1, self.connection.max_concurrent // processes)
        connection = self.connection.model_copy(update={"max_concurrent": places})
        ledger = Ledger(self.price, model=self.model, reports=False)
        client = Client(connection, self.key or find_key(connection), seed=self.seed, proxied=self.key is None)
        client.retried = ledger.retried
        server = TokenServer(client, model=None, folder="", vocabulary=self.vocabulary, seeded=self.seeded)
        return HttpServerClient(server, max_context=self.max_context, ledger=ledger)
