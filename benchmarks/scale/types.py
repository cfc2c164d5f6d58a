"""Input and result of the simulation of a run with many sandboxes: design, costs, outcome; see `simulation`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SPREAD = 0.5
"""Standard deviation of the logarithm of latencies of the sandbox provider."""

LATENCY_MEAN = math.exp(SPREAD**2 / 2)
"""Mean of a latency divided by its median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of the parts of a run, in seconds.

    `python -m benchmarks.sandboxes --only client --only simulator` measured the CPU times on 2 shared cores; see
    benchmarks/RESULTS.md. The latencies of the provider are assumed, of the order of a service in the same region.

    Attributes:
        turn_s: CPU of one turn in the process that plays it: engine client over HTTP, codec, session, scheduler.
        create_s: CPU of one start of a sandbox.
        idle_s: CPU of one sandbox without an episode for a second, mostly health checks.
        episode_s: CPU of the controller for an episode: choice of the next attempt, groups and credit.
        record_s: CPU for making one record in the process that plays the episode; without workers, also for writing it.
        receive_s: CPU of the controller for an attempt of a rollout worker in addition to `episode_s`: sending the
            attempt, receiving the trajectory, and writing the record that the worker made.
        relay_s: CPU of the controller for one turn of a rollout worker's episode that passes through it: engine client
            over HTTP (0.7 ms) and the two messages with their tasks.
        message_s: CPU of one Ray call: mean of delivering 12 to 25 kB and collecting 0.6 to 1.2 MB.
        reply_s: Median latency until the account replies to a create.
        ready_s: Median latency from the reply until the sandbox is ready.
        tool_s: Median latency of one tool call.
    """

    turn_s: float = 0.003
    create_s: float = 0.015
    idle_s: float = 0.00016
    episode_s: float = 0.00006
    record_s: float = 0.0002
    receive_s: float = 0.00015
    relay_s: float = 0.001
    message_s: float = 0.00103
    reply_s: float = 0.5
    ready_s: float = 0.5
    tool_s: float = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The design of a run.

    Attributes:
        sandboxes: Sandboxes in all accounts together.
        episodes_at_once: Most episodes at once.
        sessions_per_sandbox: Episodes that share a sandbox at once.
        starting: Most sandboxes that are starting at once.
        accounts: Number of accounts, each with its own limit.
        create_limit: Most creates of one account in any `create_window_s` seconds.
        create_window_s: Length of the window in seconds.
        workers: Rollout workers in addition to the controller; 0: one process does everything.
        direct: Rollout workers send requests directly to the engine's servers; if False, through the controller.
        replicas: Replicas of the engine; an episode stays on one.
        group_size: Episodes of a group.
        fresh: A sandbox hosts one episode, and another sandbox is started in its place.
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
    """Figures of a simulation, from the beginning of the measurement (`since` of `Simulation.run`) to its end.

    Attributes:
        seconds: Duration of the measurement in seconds.
        episodes: Episodes that were recorded.
        groups: Groups with every member recorded, counted from the beginning of the simulation.
        turns: Turns that were played.
        ready: Time at which each sandbox was ready, in order.
        creates: For each account, the times at which it counted creates, in order.
        controller: Busy share of the controller's core, or of the single process if there are no workers.
        workers: Busy share of the core of each rollout worker.
        lags: How late a timer of the controller's event loop was, in seconds, sorted.
        engine_load: Mean number of requests that were served at once.
        engine_slowdown: Mean time of a reply, divided by that of an idle engine.
        in_sandboxes: Mean number of episodes that had a sandbox at once.
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
