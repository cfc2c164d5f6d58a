"""Faults beside a real training, by seed: what is lost, what differs and what is left?"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, exactly, note
from benchmarks.reliability.places import DaytonaPlace, LocalPlace, wait_until
from benchmarks.reliability.schedule import Kind, Place, Strike, draw, place_of
from benchmarks.reliability.small_disk import SmallDisk
from benchmarks.reliability.striking import Striker
from benchmarks.reliability.trainings import ITERATIONS, Difference, Results, Training, compare, home_of, read_results
from benchmarks.sandboxes.processes import Identity, family, survivors

TRAININGS = 5
"""Seeds of the training: chaos of seed n happens to the training of seed n modulo this."""

RESUMABLE = {
    69: "a service cannot be reached",
    74: "a file cannot be written",
    129: "SIGHUP",
    130: "SIGINT",
    143: "SIGTERM",
    -signal.SIGKILL: "SIGKILL",
    -signal.SIGHUP: "SIGHUP before the command began",
    -signal.SIGTERM: "SIGTERM before the command began",
    -signal.SIGINT: "SIGINT before the command began",
}
"""Documented ends of a run that can be resumed."""

MOST_STARTS = 12
TIMEOUT_S = 420.0
PATIENCE_S = 5.0
POLL_S, LOOK_S, LATER_S = 0.02, 1.0, 0.5


@dataclass(kw_only=True)
class Outcome:
    """What came of one seed.

    Attributes:
        strikes: The faults that were drawn.
        log: The faults as they happened.
        ends: Exit statuses of the trainer, in order.
        difference: None when the run did not finish.
        processes: Processes left, of `watched`.
        sandboxes: Sandboxes left: after `finqa sandbox reap` when a trainer was ended with SIGKILL.
        reaped: Sandboxes that were left for `finqa sandbox reap`.
        complaints: Why it did not finish, tracebacks.
    """

    seed: int
    place: Place
    strikes: list[str]
    log: list[str] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    difference: Difference | None = None
    processes: int = 0
    watched: int = 0
    sandboxes: int = 0
    reaped: int = 0
    seconds: float = 0.0
    complaints: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, nothing differs and nothing is left."""
        same = self.difference == Difference(lost=0, repeated=0, rewards=0, metrics=(), adapters=())
        return same and not self.processes and not self.sandboxes and not self.complaints

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "passed": self.passed}


class Campaign:
    """Undisturbed runs, and runs that are compared with them."""

    def __init__(self, folder: Path, *, iterations: int = ITERATIONS) -> None:
        """Starts nothing.

        Args:
            folder: Contains the folder of each run.
            iterations: Iterations of each training.
        """
        self._folder = folder
        self._iterations = iterations
        self._expected: dict[int, Results] = {}

    def expected(self, seed: int) -> Results:
        """The undisturbed run of a seed of the training.

        Raises:
            RuntimeError: It failed.
        """
        if seed not in self._expected:
            folder = self._folder / f"undisturbed-{seed}"
            folder.mkdir(parents=True)
            arguments = ("--sandbox=local",)
            training = Training(folder, seed=seed, arguments=arguments, variables={}, iterations=self._iterations)
            if status := training.start().wait(TIMEOUT_S):
                raise RuntimeError(f"The undisturbed run ended with {status}: {training.output().read_text()[-2000:]}")
            self._expected[seed] = read_results(training.run)
        return self._expected[seed]

    def suffer(self, seed: int, place: Place, strikes: Sequence[Strike], name: str) -> Outcome:
        """Runs one training under these faults until it has finished, and looks at what came of it."""
        expected = self.expected(seed % TRAININGS)
        outcome = Outcome(seed=seed, place=place, strikes=[str(strike) for strike in strikes])
        began = time.monotonic()
        with SmallDisk(self._folder / name) as disk:
            home = home_of(disk.folder)
            shutil.copytree(home_of(self._folder / f"undisturbed-{seed % TRAININGS}") / "snapshots", home / "snapshots")
            with LocalPlace(home) if place == "local" else DaytonaPlace(home, seed) as there:
                training = Training(
                    disk.folder,
                    seed=seed % TRAININGS,
                    arguments=(f"--sandbox={place}",),
                    variables=there.variables(),
                    iterations=self._iterations,
                )
                striker = Striker(training, there, disk)
                relatives = _let_happen(training, striker, strikes, expected.size, outcome)
                outcome.log = striker.log
                _clean_up(training, there, striker, outcome)
            outcome.processes = len(asyncio.run(survivors(relatives, PATIENCE_S)))
            outcome.watched = len(relatives)
            if outcome.ends and outcome.ends[-1] == 0:
                outcome.difference = compare(read_results(training.run), expected)
            outcome.seconds = round(time.monotonic() - began, 1)
            if not outcome.passed:
                shutil.copytree(disk.folder, self._folder / f"{name}-failed", ignore=shutil.ignore_patterns(".ballast"))
        shutil.rmtree(self._folder / name, ignore_errors=True)
        return outcome


def _let_happen(
    training: Training, striker: Striker, strikes: Sequence[Strike], size: int, outcome: Outcome
) -> set[Identity]:
    """Starts the training again and again until it is finished; returns which processes it had."""
    waiting, due = deque(strikes), 0.0
    relatives: set[Identity] = set()
    deadline = time.monotonic() + TIMEOUT_S
    trainer, looked = training.start(), 0.0
    try:
        while True:
            now = time.monotonic()
            if now > deadline:
                outcome.complaints.append(f"not finished after {TIMEOUT_S:g} s")
                return relatives
            if now - looked > LOOK_S or (due and now >= due):
                relatives |= family(trainer.pid)
                looked = now
            status = trainer.poll()
            if status is not None:
                outcome.ends.append(status)
                _listen(training, outcome)
                if status == 0:
                    return relatives
                if status not in RESUMABLE or training.starts == MOST_STARTS:
                    said = training.output().read_text(errors="replace")[-1500:]
                    outcome.complaints.append(f"ended with {status}: {said}")
                    return relatives
                striker.repair()
                trainer = training.start()
            striker.end_due()
            if waiting and not due and training.size() >= waiting[0].at * size:
                due = time.monotonic() + waiting[0].delay_s
            if waiting and due and time.monotonic() >= due and trainer.poll() is None:
                if striker.strike(waiting[0], trainer):
                    waiting.popleft()
                    due = 0.0
                else:
                    due = now + LATER_S
            time.sleep(POLL_S)
    finally:
        striker.end_all()
        if trainer.poll() is None:
            trainer.kill()
            striker.killed += 1
        trainer.wait()


def _listen(training: Training, outcome: Outcome) -> None:
    said = training.output().read_text(errors="replace")
    if "Traceback" in said and outcome.ends[-1] != -signal.SIGINT:  # Python's own, before finqa is imported
        outcome.complaints.append(f"traceback of start {training.starts}: {said[-1500:]}")


def _clean_up(training: Training, place: LocalPlace | DaytonaPlace, striker: Striker, outcome: Outcome) -> None:
    """Counts the sandboxes, and ends those of trainers that were killed as `finqa` says."""
    left = place.sandboxes() if striker.killed else _when_none(place)
    if left and striker.killed:
        outcome.reaped = left
        command = ("sandbox", "reap", f"--run={training.run.name}", "--yes", f"--sandbox={place.name}")
        done = training.call(*command)
        if done.returncode:
            outcome.complaints.append(f"finqa {' '.join(command)}: {done.stderr[-1000:]}")
        left = _when_none(place)
    outcome.sandboxes = left


def _when_none(place: LocalPlace | DaytonaPlace) -> int:
    wait_until(lambda: place.sandboxes() == 0, PATIENCE_S)
    return place.sandboxes()


def run_seeds(
    seeds: Sequence[int], folder: Path, *, at_once: int = 1, kinds: tuple[Kind, ...] = (), number: int | None = None
) -> list[Outcome]:
    """One run per seed; each place has its own faults unless `kinds` are given."""
    campaign = Campaign(folder)
    for seed in sorted({seed % TRAININGS for seed in seeds}):
        campaign.expected(seed)

    def suffer(seed: int) -> Outcome:
        place = "local" if kinds else place_of(seed)
        outcome = campaign.suffer(seed, place, draw(seed, place, kinds=kinds, number=number), f"seed-{seed}")
        verdict = "passed" if outcome.passed else "FAILED"
        print(
            f"{time.strftime('%H:%M:%S')} seed {seed}, {place}: {verdict} in {outcome.seconds:.0f} s; "
            f"ends {outcome.ends}; {'; '.join(outcome.log)}",
            file=sys.stderr,
            flush=True,
        )
        if not outcome.passed:
            print(outcome.document(), file=sys.stderr, flush=True)
        return outcome

    with ThreadPoolExecutor(max_workers=at_once) as threads:
        return list(threads.map(suffer, seeds))


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """The bars: nothing lost, nothing different, nothing left."""
    finished = [outcome.difference for outcome in outcomes if outcome.difference is not None]
    failed = [outcome for outcome in outcomes if not outcome.passed]
    reasons = "; ".join(f"seed {outcome.seed} ({', '.join(outcome.strikes)})" for outcome in failed)
    statuses = [status for outcome in outcomes for status in outcome.ends if status]
    return [
        exactly("seeds that pass", len(outcomes) - len(failed), len(outcomes), reasons),
        exactly("runs that did not finish", len(outcomes) - len(finished), 0),
        exactly("episodes lost", sum(difference.lost for difference in finished), 0),
        exactly("episodes counted twice", sum(difference.repeated for difference in finished), 0),
        exactly("rewards that differ", sum(difference.rewards for difference in finished), 0),
        exactly("fields of metrics.jsonl that differ", sum(len(difference.metrics) for difference in finished), 0),
        exactly("adapters that differ", sum(len(difference.adapters) for difference in finished), 0),
        exactly(
            "processes left",
            sum(outcome.processes for outcome in outcomes),
            0,
            f"of {sum(outcome.watched for outcome in outcomes)} after {PATIENCE_S:g} s",
        ),
        exactly("sandboxes left", sum(outcome.sandboxes for outcome in outcomes), 0),
        exactly("tracebacks and other complaints", sum(len(outcome.complaints) for outcome in outcomes), 0),
        note("faults that happened", sum(len(o.log) for o in outcomes), f"of {sum(len(o.strikes) for o in outcomes)}"),
        note("resumes", len(statuses), ", ".join(f"{statuses.count(s)} after {s}" for s in sorted(set(statuses)))),
        note("sandboxes of killed trainers that `finqa sandbox reap` ended", sum(o.reaped for o in outcomes)),
    ]
