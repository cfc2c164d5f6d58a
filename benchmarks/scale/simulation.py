"""Simulation of a run with many sandboxes in virtual time: accounts, rollout workers, a controller, engine replicas.

It is a discrete-event simulation with a heap of events. Every process is one core that does its work first come, first
served. Waiting for a service (the account, the engine, a tool call) needs no core. Nothing sleeps, and two simulations
with the same seed are equal. Without rollout workers one process does everything. With rollout workers, the controller
sends attempts and writes the records (see `rollout.remote_workers`). It also sends the workers' requests to the engine,
unless the workers send them to the engine's servers directly.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from benchmarks.scale.engine_latency import LatencyModel, SharedDecoder
from benchmarks.scale.types import SPREAD, Costs, Design, Outcome

SETTLE_S = 5.0
"""Seconds after which an account has counted a create, even without a reply; as in the provider's quota."""

CALL_S = 0.02
"""Seconds between the calls of two workers in the same direction, as in `rollout.worker_shares`."""

DRAWN = 9973
"""Lengths and latencies that are drawn once and reused in order: drawing each one would take a third of the time."""

LAG_EVERY_S = 0.0171
"""Seconds between two samples of the lag. `CALL_S` is no multiple of it, so samples do not always meet calls."""


@dataclass(slots=True)
class Core:
    """One core. `free_at` is the time when all of its present work is done, `busy_s` the seconds of work so far."""

    free_at: float = 0.0
    busy_s: float = 0.0

    def work(self, now: float, seconds: float) -> float:
        """Add work; return the time when it is done."""
        self.free_at = max(now, self.free_at) + seconds
        self.busy_s += seconds
        return self.free_at


@dataclass(slots=True, eq=False)
class _Episode:
    number: int
    turns: int
    worker: int
    turn: int = 0
    steps: int = 0
    replica: int = -1
    asked_at: float = 0.0


@dataclass(slots=True)
class _Account:
    """One account of the sandbox provider.

    Attributes:
        waiting: Creates that wait for a place in the window.
        wakes_at: Time at which they try again.
        releases: Heap of the times at which places become free.
        counted: Times at which the account counted creates.
    """

    waiting: int = 0
    wakes_at: float = float("inf")
    releases: list[float] = field(default_factory=list)
    counted: list[float] = field(default_factory=list)


@cache
def _draw_steps(latency: LatencyModel, seed: int) -> Sequence[int]:
    """Draw decode steps of turns. Cached for all variants of a design: drawing takes as long as a short simulation."""
    return tuple(latency.steps(seed, number) for number in range(DRAWN))


class Simulation:
    """One run of a design; `run` may be called once."""

    def __init__(
        self, design: Design, costs: Costs, latency: LatencyModel, turns: Sequence[int], *, seed: int = 0
    ) -> None:
        """Prepare a simulation.

        Args:
            design: The design.
            costs: Costs of its parts.
            latency: Speed of each engine replica, and lengths of turns.
            turns: Number of turns of each episode in order; after the last one they start over.
            seed: Seed of lengths and latencies.
        """
        self._design, self._costs, self._latency, self._turns_of = design, costs, latency, turns
        self._rng = random.Random(seed)
        self._drawn_steps = _draw_steps(latency, seed)
        self._steps = itertools.cycle(self._drawn_steps)
        self._factors = itertools.cycle([self._rng.lognormvariate(0.0, SPREAD) for _ in range(DRAWN)])
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._controller = Core()
        self._workers = [Core() for _ in range(design.workers)]
        self._relays = bool(design.workers) and not design.direct
        self._loads = [0] * max(1, design.workers)
        self._decoders: list[SharedDecoder[_Episode]] = [SharedDecoder(latency, 0.0) for _ in range(design.replicas)]
        self._served_at = [float("inf")] * design.replicas
        self._replica_loads = [0] * design.replicas
        self._accounts = [_Account() for _ in range(design.accounts)]
        self._next_account = itertools.cycle(self._accounts)
        self._to_start = self._starting = 0
        self._due = {"in": [0.0] * design.workers, "out": [0.0] * design.workers}
        self._begun = self._live = self._places = self._leased = 0
        self._members: dict[int, int] = {}
        self._ready: list[float] = []
        self._lags: list[float] = []
        self._on_time = 0
        self._next_sample: float = float("inf")
        self._most: float = 0
        self._recorded = self._groups = self._turns = 0
        self._reply_s = self._idle_reply_s = self._leased_s = 0.0

    def run(self, *, episodes: int = 0, seconds: float = float("inf"), filled: bool = False, since: int = 0) -> Outcome:
        """Simulate until `episodes` episodes are recorded, or until a time.

        Args:
            episodes: Episodes to record; 0: only start the sandboxes.
            seconds: Time at which to stop.
            filled: At the beginning all sandboxes are ready. With `since`, their episodes are then in progress.
            since: Episodes to record before the measurement begins; `episodes` includes them. Above 0, more episodes
                are started than `episodes`, so that the simulation ends under full load. With 0, no episodes are
                started after the last one, as at the end of an iteration.
        """
        design = self._design
        self._most = float("inf") if since else episodes
        if filled:
            self._places = design.sandboxes * design.sessions_per_sandbox
            self._ready = [0.0] * design.sandboxes
        else:
            self._to_start = design.sandboxes
            self._start_sandboxes()
        if episodes:
            self._fill_places(self._under_way() if filled and since else None)
            self._next_sample = LAG_EVERY_S
        before = self._state()
        enough = episodes or float("inf")
        while self._events and self._events[0][0] <= seconds and self._recorded < enough:
            when, _, event, arguments = heapq.heappop(self._events)
            self._sample_lags(when)
            self._now = when
            event(*arguments)
            if since and self._recorded >= since and not before[1]:
                before = self._state()
                self._lags.clear()
                self._on_time = 0
        if seconds < float("inf"):
            self._sample_lags(seconds)
            self._now = seconds
        return self._outcome(before)

    def _state(self) -> tuple[float, ...]:
        """Return the counters that `_outcome` subtracts: the time first, then the recorded episodes."""
        for decoder in self._decoders:
            decoder.advance(self._now)
        served = sum(decoder.request_seconds for decoder in self._decoders)
        cores = (self._controller, *self._workers)
        busy = [core.busy_s - max(0.0, core.free_at - self._now) for core in cores]  # without work that still waits
        return (
            *(self._now, self._recorded, self._turns, self._reply_s, self._idle_reply_s, served),
            self._leased_s + self._leased * self._now,
            *busy,
        )

    def _outcome(self, before: Sequence[float]) -> Outcome:
        change = [after - earlier for after, earlier in zip(self._state(), before, strict=True)]
        seconds, episodes, turns, reply_s, idle_reply_s, served, leased_s, controller, *workers = change
        span = seconds or 1.0
        idle = self._idle_share(span, leased_s)
        return Outcome(
            seconds=seconds,
            episodes=int(episodes),
            groups=self._groups,
            turns=int(turns),
            ready=sorted(self._ready),
            creates=[sorted(account.counted) for account in self._accounts],
            controller=controller / span + (0.0 if workers else idle),
            workers=[busy / span + idle for busy in workers],
            lags=[0.0] * self._on_time + sorted(self._lags),
            engine_load=served / span,
            engine_slowdown=reply_s / idle_reply_s if idle_reply_s else 1.0,
            in_sandboxes=leased_s / span,
        )

    def _at(self, when: float, event: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), event, arguments))

    def _latency_s(self, median_s: float) -> float:
        return median_s * next(self._factors)

    def _idle_share(self, span: float, leased_s: float) -> float:
        """Return the share of a core that sandboxes without an episode cost each process that has sandboxes.

        It is added to what was simulated, and delays nothing.
        """
        design = self._design
        if design.fresh:  # a sandbox gets its only episode at once
            return 0.0
        there_s = sum(min(span, self._now - ready) for ready in self._ready)
        idle_s = max(0.0, there_s - leased_s / design.sessions_per_sandbox)
        return self._costs.idle_s * idle_s / span / max(1, design.workers)

    def _sample_lags(self, until: float) -> None:
        """Sample how late the controller's timers are until the next event, between which nothing changes."""
        free_at, runs = self._controller.free_at, bool(self._live) or self._most > self._begun
        while self._next_sample <= until:
            if self._next_sample < free_at:
                self._lags.append(free_at - self._next_sample)
                moments = 1
            else:
                moments = int((until - self._next_sample) / LAG_EVERY_S) + 1 if runs else 1
                self._on_time += moments
            self._next_sample = self._next_sample + moments * LAG_EVERY_S if runs else float("inf")

    # Sandboxes

    def _start_sandboxes(self) -> None:
        while self._to_start and self._starting < self._design.starting:
            self._to_start -= 1
            self._starting += 1
            account = next(self._next_account)
            account.waiting += 1
            self._create(account)

    def _create(self, account: _Account) -> None:
        """Send waiting creates while the account's window has places; try again when the next place becomes free."""
        design, costs = self._design, self._costs
        while account.releases and account.releases[0] <= self._now:
            heapq.heappop(account.releases)
        while account.waiting and len(account.releases) < design.create_limit:
            account.waiting -= 1
            if self._workers:
                self._controller.work(self._now, costs.message_s)  # the worker requests a place: all share one window
            core = min(self._workers, key=lambda worker: worker.free_at, default=self._controller)
            sent = core.work(self._now, costs.create_s)
            replied = sent + self._latency_s(costs.reply_s)
            settled = min(replied, self._now + SETTLE_S)
            account.counted.append(self._rng.uniform(sent, max(sent, settled)))
            heapq.heappush(account.releases, settled + design.create_window_s)
            self._at(replied + self._latency_s(costs.ready_s), self._sandbox_ready)
        if account.waiting and account.releases[0] < account.wakes_at:
            account.wakes_at = account.releases[0]
            self._at(account.wakes_at, self._wake, account)

    def _wake(self, account: _Account) -> None:
        account.wakes_at = float("inf")
        self._create(account)

    def _sandbox_ready(self) -> None:
        self._starting -= 1
        self._ready.append(self._now)
        self._places += self._design.sessions_per_sandbox
        self._fill_places()
        self._start_sandboxes()

    # Episodes

    def _under_way(self) -> Iterator[tuple[int, int]]:
        """Yield turns of episodes and steps of requests that are in progress: longer ones are more likely to be."""
        turns, steps = self._turns_of, self._drawn_steps
        count = self._design.episodes_at_once
        return zip(self._rng.choices(turns, turns, k=count), self._rng.choices(steps, steps, k=count), strict=True)

    def _fill_places(self, under_way: Iterator[tuple[int, int]] | None = None) -> None:
        while self._live < self._design.episodes_at_once and self._places and self._begun < self._most:
            self._places -= 1
            self._live += 1
            self._leased += 1
            self._leased_s -= self._now
            number = self._begun
            self._begun += 1
            worker = min(range(len(self._loads)), key=self._loads.__getitem__)
            self._loads[worker] += 1
            episode = _Episode(number, self._turns_of[number % len(self._turns_of)], worker)
            if under_way is not None:
                episode.turns, steps = next(under_way)
                episode.turn = self._rng.randrange(episode.turns)
                episode.steps = math.ceil(steps * self._rng.random())
            begins = self._message(worker, "out") if self._workers and under_way is None else self._now
            self._at(begins + self._latency_s(self._costs.tool_s), self._ask, episode)

    def _message(self, worker: int, way: str) -> float:
        """Send a message in the next call from (`in`) or to (`out`) a worker; return the time when it arrives."""
        if self._due[way][worker] <= self._now:
            wait_s = (worker * CALL_S - self._now) % (len(self._workers) * CALL_S)
            self._due[way][worker] = self._now + wait_s
            self._controller.work(self._now, self._costs.message_s)
        return self._due[way][worker]

    def _ask(self, episode: _Episode) -> None:
        """Request a turn: by way of the controller, or directly."""
        if self._relays:
            self._at(self._message(episode.worker, "in"), self._relay, episode)
        else:
            self._request(episode)

    def _relay(self, episode: _Episode) -> None:
        self._at(self._controller.work(self._now, self._costs.relay_s), self._request, episode)

    def _request(self, episode: _Episode) -> None:
        """Begin a turn on the engine, on the replica of the episode."""
        if episode.replica < 0:
            episode.replica = min(range(len(self._decoders)), key=self._replica_loads.__getitem__)
            self._replica_loads[episode.replica] += 1
        episode.asked_at = self._now
        episode.steps = episode.steps or next(self._steps)
        finished = self._decoders[episode.replica].add(episode, episode.steps, self._now)
        self._replies(episode.replica, finished)

    def _serve(self, replica: int, due: float) -> None:
        if due == self._served_at[replica]:  # otherwise an earlier time was scheduled meanwhile
            self._served_at[replica] = float("inf")
            self._replies(replica, self._decoders[replica].advance(self._now))

    def _replies(self, replica: int, finished: Sequence[_Episode]) -> None:
        for episode in finished:
            self._reply_s += self._now - episode.asked_at
            self._idle_reply_s += episode.steps * self._latency.step_s
            episode.steps = 0
            self._turns += 1
            if self._relays:
                self._at(self._message(episode.worker, "out"), self._play, episode)
            else:
                self._play(episode)
        due = self._decoders[replica].due()
        if due is not None and due < self._served_at[replica]:
            self._served_at[replica] = due
            self._at(due, self._serve, replica, due)

    def _play(self, episode: _Episode) -> None:
        done = self._core(episode).work(self._now, self._costs.turn_s)
        self._at(done + self._latency_s(self._costs.tool_s), self._answered, episode)

    def _core(self, episode: _Episode) -> Core:
        return self._workers[episode.worker] if self._workers else self._controller

    def _answered(self, episode: _Episode) -> None:
        episode.turn += 1
        if episode.turn < episode.turns:
            self._ask(episode)
            return
        self._replica_loads[episode.replica] -= 1
        self._loads[episode.worker] -= 1
        self._leased -= 1
        self._leased_s += self._now
        if self._design.fresh:
            self._to_start += 1
            self._start_sandboxes()
        else:
            self._places += 1
        if self._workers:
            self._at(self._core(episode).work(self._now, self._costs.record_s), self._send, episode)
        else:
            self._at(
                self._controller.work(self._now, self._costs.episode_s + self._costs.record_s), self._record, episode
            )

    def _send(self, episode: _Episode) -> None:
        self._at(self._message(episode.worker, "in"), self._receive, episode)

    def _receive(self, episode: _Episode) -> None:
        seconds = self._costs.receive_s + self._costs.episode_s
        self._at(self._controller.work(self._now, seconds), self._record, episode)

    def _record(self, episode: _Episode) -> None:
        """Count the episode, and start others in the free places."""
        group = episode.number // self._design.group_size
        self._members[group] = self._members.get(group, 0) + 1
        if self._members[group] == self._design.group_size:
            self._groups += 1
            del self._members[group]
        self._recorded += 1
        self._live -= 1
        self._fill_places()
