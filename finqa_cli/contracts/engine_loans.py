"""Direct requests of other processes to the servers of a token engine, and how long these keep a policy version."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from finqa_cli.types import Completion, GenerateRequest


class ServerClient(ABC):
    """A connection to one server from a process that does not load versions."""

    @abstractmethod
    async def generate(self, request: GenerateRequest, route: EngineRoute) -> Completion:
        """Sample one completion under the route's version.

        Raises:
            FinqaError: The server cannot be reached, does not have the version, or refuses.
        """

    @abstractmethod
    def usage(self, episode: str) -> Mapping[str, Any]:
        """Return what an episode used through this client, see `Engine.usage`; empty if it used nothing."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections. Idempotent."""


class ServerAccess(ABC):
    """Address of a server, and all that its clients need to know. Frozen, picklable, compared by value.

    It contains no key: other processes find keys in their environment variables or in the settings.
    """

    @property
    @abstractmethod
    def host(self) -> str:
        """Name or address of the server's machine."""

    @abstractmethod
    def connect(self, processes: int) -> ServerClient:
        """Return a client for this process.

        Args:
            processes: Number of processes that share the server's limits.

        Raises:
            AuthenticationError: The environment of this process does not have the key.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRoute:
    """How requests reach one policy version on one replica.

    Attributes:
        server: The replica's server.
        served_name: The server's name of the version. It never gives the name to another version.
        policy_version: Number of the version.
        node: Address of the node that the replica runs on; empty: the machine of the process that started it.
    """

    server: ServerAccess
    served_name: str
    policy_version: int
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoan:
    """A policy version that the servers keep for other processes until `end` is called.

    Attributes:
        routes: Route to each replica, by its number; None where requests must go through the controller's engine.
        end: Called once, when no request uses the version any more.
        suspect: Called with an episode (the part of its keys before `#`) and the number of the replica that failed for
            it. The engine sends the episode's next request to that replica, and judges the replica by the result.
        heard: Called from time to time with the number of a replica that has answered since the last call.
    """

    routes: tuple[EngineRoute | None, ...]
    end: Callable[[], None]
    suspect: Callable[[str, int], None] = lambda episode, replica: None
    heard: Callable[[int], None] = lambda replica: None
