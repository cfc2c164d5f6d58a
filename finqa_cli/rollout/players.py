"""Who plays the episodes of a run: this process, or other processes that a plugin starts (hook `make_players`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from finqa_cli.contracts import ChatCodec, ChatEngine, Environment, TokenEngine
from finqa_cli.rollout.attempts import AttemptPlayer, Player
from finqa_cli.rollout.breaker import EngineBreaker
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import Pool, PoolListener
from finqa_cli.settings import Settings
from finqa_cli.types import PolicyVersion, Sampling, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Settings with which attempts are played.

    Attributes:
        limits: Limits of an episode.
        sampling: Sampling parameters of a turn; each turn has its own seed.
        max_retries: Most recoveries and restarts of an attempt together.
        max_context: Longest prompt plus completion of a token engine, in tokens; 0 for a chat engine.
    """

    limits: Limits
    sampling: Sampling
    max_retries: int
    max_context: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayersRequest:
    """The run whose episodes are to be played by other processes.

    Attributes:
        settings: Settings of the run; `cluster` has the number of processes and the address of their machines.
        policy: The version that the engine serves at first; its model has the tokenizer.
        environment: The environment of this process.
        engine: Generates for all processes; not started.
        run_id: Label of the sandboxes.
        size: Number of sandboxes of all processes together.
        engine_breaker: Judges the engine.
        on_event: Called with the events of sandboxes and processes.
        restarted: Called with each try that is played again; it is not the result of its attempt.
    """

    settings: Settings
    policy: PolicyVersion
    environment: Environment
    engine: TokenEngine | ChatEngine
    run_id: str
    size: int
    engine_breaker: EngineBreaker
    on_event: PoolListener
    restarted: Callable[[Trajectory], object]


class Players(ABC):
    """Makes the players of a run.

    Attributes:
        pool: Starts and ends the sandboxes, and the processes that play on them.
        engine: The engine that this process starts, loads and closes: that of the request, or one that wraps it.
    """

    pool: Pool
    engine: TokenEngine | ChatEngine

    @abstractmethod
    def player(self, rules: Rules, played: Callable[[Trajectory], None]) -> AttemptPlayer:
        """Return a player by these rules; `played` is called with the trajectory of each attempt."""

    def inputs(self) -> Mapping[str, str]:
        """Return digests that the environments of other processes reported; see `Environment.inputs`."""
        return {}

    def spent(self) -> Mapping[str, float]:
        """Return what the environments of other processes used; see `Environment.spent`."""
        return {}

    def check_engine(self) -> None:  # noqa: B027  most players play with every engine
        """Check the engine after its start.

        Raises:
            ConfigError: These players cannot play with it.
        """


class PlayersHere(Players):
    """Players in this process."""

    def __init__(
        self,
        environment: Environment,
        pool: Pool,
        engine: TokenEngine | ChatEngine,
        codec: ChatCodec | None,
        breaker: EngineBreaker | None,
    ) -> None:
        """Play on the sandboxes of `pool`; `codec` is None for a chat engine, `breaker` judges the engine."""
        self.pool, self.engine = pool, engine
        self._environment, self._codec, self._breaker = environment, codec, breaker

    def player(self, rules: Rules, played: Callable[[Trajectory], None]) -> Player:
        """Return a player by these rules; `played` is called with the trajectory of each try."""
        return Player(
            self._environment,
            self.pool,
            self.engine,
            self._codec,
            limits=rules.limits,
            sampling=rules.sampling,
            max_retries=rules.max_retries,
            breaker=self._breaker,
            played=played,
        )
