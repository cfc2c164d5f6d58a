"""What is simulated of a run with many sandboxes, what its parts cost, and what comes out; see `scale_simulation`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SPREAD = 0.5
"""Standard deviation of the logarithm of latencies of the sandbox provider."""

LATENCY_MEAN = math.exp(SPREAD**2 / 2)
"""Mean of a latency by its median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the parts cost, in seconds.

    CPU as `python -m benchmarks.sandboxes --only client --only simulator` measured it on 2 shared cores; see
    benchmarks/RESULTS.md. The latencies of the provider are assumed, of the order of a service in the same region.

    Attributes:
        turn_s: CPU of one turn in the process that plays it: engine client over HTTP, codec, session, scheduler.
        create_s: CPU of one start of a sandbox.
        episode_s: CPU of the controller for an episode: which attempt is next, groups and credit.
        record_s: CPU of making one record where the episode is played, and without workers of writing it.
        receive_s: CPU of the controller for an attempt of a rollout worker beyond `episode_s`: it is sent, the
            trajectory is received, and the record that the worker made is written.
        relay_s: CPU of the controller for one turn of a rollout worker's episode that passes through it: engine client
            over HTTP (0.7 ms) and the two messages with their tasks.
        message_s: CPU of one Ray call, measured on a prototype.
        reply_s: Median latency until the account answers a create.
        ready_s: Median latency from there until the sandbox is ready.
        tool_s: Median latency of one tool call.
    """

    turn_s: float = 0.003
    create_s: float = 0.015
    episode_s: float = 0.00006
    record_s: float = 0.0002
    receive_s: float = 0.00014
    relay_s: float = 0.001
    message_s: float = 0.00092
    reply_s: float = 0.5
    ready_s: float = 0.5
    tool_s: float = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What runs.

    Attributes:
        sandboxes: In all accounts together.
        episodes_at_once: Most episodes at once.
        sessions_per_sandbox: Episodes that share a sandbox.
        starting: Sandboxes that may be starting at once.
        accounts: Accounts, each with a limit of its own.
        create_limit: Creates of one account in any `create_window_s`.
        workers: Rollout workers beside the controller; 0: one process does everything.
        direct: They ask the engine's servers themselves; else their turns pass through the controller.
        replicas: Replicas of the engine; an episode stays on one.
        group_size: Episodes of a group.
        fresh: A sandbox hosts one episode, and another one is started in its place.
    """

    sandboxes: int
    episodes_at_once: int
    sessions_per_sandbox: int = 1
    starting: int = 100
    accounts: int = 1
    create_limit: int = 300
    create_window_s: float = 60.0
    workers: int = 0
    direct: bool = True
    replicas: int = 1
    group_size: int = 6
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happened from `since` on, the moment from which it was measured.

    Attributes:
        seconds: From then to the end.
        episodes: That were recorded.
        groups: Groups with every member recorded, counted from the beginning on.
        turns: That were played.
        ready: When each sandbox was ready, in order.
        creates: For each account when it counted each create, in order.
        controller: Share of the controller's core that was busy; of the one process where there are no workers.
        workers: The same of each rollout worker.
        lags: How late a timer of the controller's event loop was, in order of size.
        engine_load: Requests that were served at once, on average.
        engine_slowdown: Mean time of a reply by that of an idle engine.
        in_sandboxes: Episodes that had a sandbox at once, on average.
    """

    seconds: float
    episodes: int
    groups: int
    turns: int
    ready: Sequence[float]
    creates: Sequence[Sequence[float]]
    controller: float
    workers: Sequence[float]
    lags: Sequence[float]
    engine_load: float
    engine_slowdown: float
    in_sandboxes: float

    @property
    def episodes_per_s(self) -> float:
        """Episodes per second."""
        return self.episodes / self.seconds if self.seconds else 0.0

    @property
    def turns_per_s(self) -> float:
        """Turns per second, which vary less than episodes."""
        return self.turns / self.seconds if self.seconds else 0.0

    @property
    def lag_p99_s(self) -> float:
        """The 99th percentile of `lags`."""
        return self.lags[int(0.99 * (len(self.lags) - 1))] if self.lags else 0.0
