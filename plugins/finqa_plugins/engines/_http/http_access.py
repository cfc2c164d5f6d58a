"""How a server of tokens is asked: one completion within its context, by the engine and by processes that it lends to.

A client in another process uses the same connection, checks and repetitions as the engine. It loads nothing: the name
that a request carries decides which version answers, and names are never used twice.
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
    """One completion, shortened to what the context has room for; empty, with stop `length`, where it has none.

    Args:
        server: The server.
        request: What is asked for.
        served_name: Name of the version on the server.
        version: Number of the version.
        max_context: Longest prompt plus completion.
        ledger: Gets what was used.
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
    ledger.add(request.key, reply.usage)
    return Completion(token_ids=reply.token_ids, logprobs=reply.logprobs, stop=reply.stop, policy_version=version)


class HttpServerClient(ServerClient):
    """A client of one server."""

    def __init__(self, server: TokenServer, *, max_context: int, ledger: Ledger) -> None:
        self._server, self._max_context, self._ledger = server, max_context, ledger

    async def generate(self, request: GenerateRequest, route: EngineRoute) -> Completion:
        """See `ServerClient`; the server is asked again as the engine does it."""
        return await complete(
            self._server,
            request,
            served_name=route.served_name,
            version=route.policy_version,
            max_context=self._max_context,
            ledger=self._ledger,
        )

    def usage(self, episode: str) -> Mapping[str, Any]:
        """What the episode used here; empty when nothing."""
        return self._ledger.episode(episode) if self._ledger.knows(episode) else {}

    async def close(self) -> None:
        """Closes the connections."""
        await self._server.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess(ServerAccess):
    """What a client has to know of a server.

    Attributes:
        connection: Address and limits. A key that the settings contain is in it.
        key: Key of a server that finqa started, which no environment has; None: see `find_key`.
        seed: Seed of the pauses between repetitions.
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
        """That of the address."""
        return self.connection.host

    def connect(self, processes: int) -> ServerClient:
        """A client with its share of the simultaneous requests.

        Raises:
            AuthenticationError: The variable with the key is not set here.
        """
        places = max(1, self.connection.max_concurrent // processes)
        connection = self.connection.model_copy(update={"max_concurrent": places})
        client = Client(connection, self.key or find_key(connection), seed=self.seed, proxied=self.key is None)
        server = TokenServer(client, model=None, folder="", vocabulary=self.vocabulary, seeded=self.seeded)
        ledger = Ledger(self.price, model=self.model, reports=False)
        return HttpServerClient(server, max_context=self.max_context, ledger=ledger)
