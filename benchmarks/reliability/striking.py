"""Lets faults happen to a training: each one, and what ends it again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

from benchmarks.reliability.places import DELAY_S, STORM, DaytonaPlace, LocalPlace
from benchmarks.reliability.schedule import Kind, Strike
from benchmarks.reliability.small_disk import SmallDisk
from benchmarks.reliability.trainings import Training
from finqa_testing import Faults

HOUR_S = 3600.0
MOST_LEFT = 100_000
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WHOLE = 0.5
"""How large a share of sandboxes dies or freezes at most: all of them is what killing the service does."""


class Striker:
    """Does what a schedule says.

    Attributes:
        log: What happened, for the report.
        killed: How often a trainer was ended with SIGKILL, and could clean up nothing.
    """

    def __init__(self, training: Training, place: LocalPlace | DaytonaPlace, disk: SmallDisk) -> None:
        self.log: list[str] = []
        self.killed = 0
        self._training = training
        self._place = place
        self._disk = disk
        self._endings: list[tuple[float, Kind, Callable[[], object]]] = []
        self._began = time.monotonic()

    def strike(self, strike: Strike, trainer: subprocess.Popen[bytes]) -> bool:
        """Lets one fault happen now; False when there is nothing yet that it could happen to."""
        try:
            said = self._strike(strike, trainer)
        except (OSError, RuntimeError):  # a process that was gone, or a service that was killed or frozen before
            said = ""
        if said:
            self.log.append(f"{time.monotonic() - self._began:.1f} s: {strike}: {said}")
        return bool(said)

    def end_due(self) -> None:
        """Ends faults whose time is over."""
        now = time.monotonic()
        self._end(lambda at, _: at <= now)

    def end_all(self) -> None:
        """Ends all faults."""
        self._end(lambda _at, _kind: True)

    def repair(self) -> None:
        """Does what a user does before a run is resumed: the disk has room again, the service is started."""
        self._end(lambda _, kind: kind in ("full disk", "kill service"))

    def _end(self, due: Callable[[float, Kind], bool]) -> None:
        over = [ending for ending in self._endings if due(ending[0], ending[1])]
        self._endings = [ending for ending in self._endings if ending not in over]
        for _, _, end in over:
            with contextlib.suppress(ProcessLookupError):
                end()

    def _until(self, strike: Strike, end: Callable[[], object]) -> None:
        self._endings.append((time.monotonic() + strike.lasts_s, strike.kind, end))

    def _strike(self, strike: Strike, trainer: subprocess.Popen[bytes]) -> str:
        match strike.kind:
            case "kill trainer":
                self.killed += 1
                trainer.kill()
            case "stop trainer":
                number = STOPS[int(strike.pick * len(STOPS))]
                trainer.send_signal(number)
                return number.name
            case "freeze trainer":
                self._freeze(strike, trainer.pid)
            case "full disk":
                leave = int(strike.pick * MOST_LEFT)
                self._disk.fill(trainer.pid, self._training.run, leave)
                self._until(strike, self._disk.free)
                return f"{leave} bytes left"
            case "clock step":
                seconds = HOUR_S if strike.pick > 0.5 else -HOUR_S
                self._training.step_clock(seconds)
                return f"{seconds:+.0f} s"
            case "kill server" | "freeze server":
                return self._strike_server(strike)
            case "cut sockets" if isinstance(self._place, LocalPlace):
                return self._place.cut()
            case _:
                assert isinstance(self._place, DaytonaPlace), strike
                return self._strike_daytona(strike, self._place)
        return "done"

    def _strike_server(self, strike: Strike) -> str:
        servers = self._place.servers()
        if not servers:
            return ""
        pid = servers[int(strike.pick * len(servers))]
        if strike.kind == "kill server":
            os.kill(pid, signal.SIGKILL)
        else:
            self._freeze(strike, pid)
        return f"server {pid}"

    def _freeze(self, strike: Strike, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._until(strike, lambda: os.kill(pid, signal.SIGCONT))

    def _strike_daytona(self, strike: Strike, place: DaytonaPlace) -> str:
        share = WHOLE * strike.pick
        match strike.kind:
            case "kill sandboxes":
                killed = place.kill_sandboxes(share)
                return f"{killed} sandboxes" if killed else ""
            case "freeze sandboxes":
                frozen = place.freeze_sandboxes(share)
                self._until(strike, lambda: place.thaw_sandboxes(frozen))
                return f"{len(frozen)} sandboxes" if frozen else ""
            case "kill service":
                place.kill_service()
                self._until(strike, place.start_service)
            case "freeze service":
                place.pause_service(signal.SIGSTOP)
                self._until(strike, lambda: place.pause_service(signal.SIGCONT))
            case "storm":
                place.storm(STORM)
                self._until(strike, lambda: place.storm(Faults()))
            case "expired addresses":
                place.expire_addresses()
            case "cut sockets":
                cut = place.connections.cut()
                return f"{cut} connections" if cut else ""
            case "slow sockets":
                place.connections.delay_s = DELAY_S
                self._until(strike, place.connections.heal)
            case "silent sockets":
                place.connections.silence()
                self._until(strike, place.connections.heal)
            case _:
                raise AssertionError(strike)
        return "done"
