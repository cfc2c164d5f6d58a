"""How other processes ask the servers of a token engine themselves, and for how long a policy version stays on them."""

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
        """Return what an episode used by this client, see `Engine.usage`; empty when nothing."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections. Idempotent."""


class ServerAccess(ABC):
    """Where a server is, and what its clients have to know. Frozen, pickled, and compared by value.

    A key that other processes find in their environment or in the settings is not in it.
    """

    @property
    @abstractmethod
    def host(self) -> str:
        """Name or address of the server's machine."""

    @abstractmethod
    def connect(self, processes: int) -> ServerClient:
        """Return a client in this process, one of so many that share the server's limits.

        Raises:
            AuthenticationError: The environment of this process does not have the key.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRoute:
    """How one replica is asked for one policy version.

    Attributes:
        server: The replica's server.
        served_name: What the server calls the version. It never gives the name to another one.
        policy_version: Number of the version.
        node: Address of the node that the replica runs on; empty: the machine of the process that started it.
    """

    server: ServerAccess
    served_name: str
    policy_version: int
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoan:
    """A version that other processes may use until `end` is called: until then the servers keep it.

    Attributes:
        routes: Route to each replica, by its number; None where the controller's engine has to be asked.
        end: Called once, when no request uses the version any more.
        suspect: Called with an episode, the part of its keys before `#`, and the replica that failed for it: the
            engine sends the episode's next request to that replica, and judges it by the result.
        heard: Called now and then with a replica that has answered since the last call.
    """

    routes: tuple[EngineRoute | None, ...]
    end: Callable[[], None]
    suspect: Callable[[str, int], None] = lambda episode, replica: None
    heard: Callable[[int], None] = lambda replica: None
