"""Usage and cost of a run so far, their forecast for the whole run, and the limits at which it stops."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.settings.schema import RunSettings
from finqa_cli.types import Trajectory
from finqa_cli.types.token_use import recorded_use

FIRST_ESTIMATE = 8
"""Episodes after which the usage of the whole run is estimated."""

HOUR_S = 3600.0

SPENT = "spent"
"""Key of run.json for the usage of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Usage of a run.

    Attributes:
        episodes: Attempts that ended, including those that are played again.
        tokens: Prompt and sampled tokens. For engines that report usage, the prompt of each turn counts in full.
        sandbox_hours: Hours of all sandboxes together, since the start of this process.
        gpu_hours: Hours of all GPUs of the run together, since the start of this process.
        cost_usd: Cost of engine, GPUs and sandboxes in US dollars; None if nothing has a price.
    """

    episodes: int
    tokens: int
    sandbox_hours: float
    gpu_hours: float
    cost_usd: float | None


class Meter:
    """Counts the usage of a run, and calls `stop` once when a limit is reached.

    Tokens and charges of recorded episodes count from the beginning of the run, hours from the start of this process.
    """

    def __init__(
        self,
        limits: RunSettings,
        *,
        gpus: int,
        stop: Callable[[str], None],
        tell: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count.

        Args:
            limits: Limits and prices.
            gpus: Number of GPUs that the run uses.
            stop: Called once with the reason when a limit is reached.
            tell: Receives the estimate as a sentence.
            clock: Returns a monotonic time in seconds.
        """
        self._limits = limits
        self._gpus = gpus
        self._stop = stop
        self._tell = tell
        self._clock = clock
        self._began = clock()
        self._episodes = 0
        self._tokens = 0
        self._charged: float | None = None
        self._by_attempt: dict[str, tuple[int, float]] = {}
        self._largest = (0, 0.0)
        self._metered = False
        self._sandbox_s = 0.0
        self._known = 0
        self._stopped = False
        self._planned: int | None = None
        self._estimated = False
        self._beside: Callable[[], Sequence[Mapping[str, float]]] = tuple
        self._keep: Callable[[dict[str, Any]], None] = lambda document: None

    def keep_in(self, keep: Callable[[dict[str, Any]], None]) -> None:
        """Have `close` pass the usage on, for the record of the run."""
        self._keep = keep

    def count_beside(self, spent: Callable[[], Sequence[Mapping[str, float]]]) -> None:
        """Count what `spent` returns whenever it is called, see `Environment.spent`, in addition to the attempts."""
        self._beside = spent

    def close(self) -> None:
        """Pass on the usage, when everything that uses something has ended."""
        self._keep(self.document())

    @property
    def spending(self) -> Spending:
        """The usage until now."""
        gpu_hours = self._gpus * (self._clock() - self._began) / HOUR_S
        sandbox_hours = self._sandbox_s / HOUR_S
        beside: Counter[str] = Counter()
        for spent in self._beside():
            beside.update(spent)
        parts = (
            self._charged,
            beside["cost_usd"] or None,
            gpu_hours * self._limits.gpu_hour_price if self._limits.gpu_hour_price and self._gpus else None,
            sandbox_hours * self._limits.sandbox_hour_price if self._limits.sandbox_hour_price else None,
        )
        priced = [part for part in parts if part is not None]
        return Spending(
            episodes=self._episodes,
            tokens=self._tokens + int(beside["prompt_tokens"] + beside["completion_tokens"]),
            sandbox_hours=sandbox_hours,
            gpu_hours=gpu_hours,
            cost_usd=sum(priced) if priced else None,
        )

    def document(self) -> dict[str, Any]:
        """Return the usage as a JSON-ready mapping."""
        return asdict(self.spending)

    def admits(self, running: int) -> bool:
        """Whether one more episode may start beside `running` ones, so that a limit is passed by one episode at most.

        Each running episode is expected to use as much as the largest one so far. The first one plays alone.
        """
        self.check()
        spent = self.spending
        left = [
            (limit - used) / largest if largest else 0.0
            for limit, used, largest in (
                (self._limits.max_tokens, spent.tokens, self._largest[0]),
                (self._limits.max_cost if self._metered else None, spent.cost_usd or 0.0, self._largest[1]),
            )
            if limit is not None
        ]
        return running < max(1.0, min(left)) if left else True

    def check_priced(self, engine_priced: bool, judge: Mapping[str, Any], *, episode_cost: float | None = None) -> None:
        """Check that a limit of cost can be reached, now that the engine is known.

        Args:
            engine_priced: Whether the engine computes the cost of its requests.
            judge: Options of the judge.
            episode_cost: Limit of cost of an episode.

        Raises:
            ConfigError: Nothing in the run has a price, or the engine has none and episodes have a limit.
        """
        limits = self._limits
        self._metered = engine_priced
        if episode_cost is not None and not engine_priced:
            raise ConfigError(
                "The model has no price, so --max-episode-cost would have no effect.",
                remedy="--set engine.options.prices=prices.toml, or --max-episode-tokens",
            )
        priced = engine_priced or judge.get("prices") or limits.sandbox_hour_price
        if limits.max_cost is not None and not (priced or (self._gpus and limits.gpu_hour_price)):
            raise _no_price()

    def plan(self, episodes: int, run: Path, settings: Settings) -> None:
        """Report the expected usage of the episodes, from an earlier run of the same policy.

        Nothing is reported if the run has no limit and no price.

        Args:
            episodes: Number of episodes that are still to be played.
            run: Folder of the run; earlier runs are searched in the same parent folder.
            settings: Settings of the run.
        """
        self._planned = episodes
        if not self._is_asked:
            return
        if (found := find_earlier(run, settings)) is None:
            self._tell(
                f"No run beside {run} shows the usage of an episode; an estimate follows after {FIRST_ESTIMATE}."
            )
            return
        earlier, spent = found
        self._tell(f"Estimate from {earlier}: {_forecast(spent, episodes)}")

    @property
    def _is_asked(self) -> bool:
        limits = self._limits
        prices = limits.gpu_hour_price or limits.sandbox_hour_price
        return bool(limits.max_cost or limits.max_tokens or prices) or self.spending.cost_usd is not None

    def add_recorded(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Count attempts of the run that an earlier process played, from their records in trajectories.jsonl."""
        for record in records:
            metadata = record.get("metadata", {})
            use = recorded_use(record)
            self._add_judging(metadata)
            self._add(str(record["id"]), metadata, use.tokens if use else 0)
        self._known = self._episodes

    def add(self, trajectory: Trajectory) -> None:
        """Count an attempt that ended, also if it is played again."""
        self._add(trajectory.id, trajectory.metadata, trajectory.tokens)
        self._estimate()
        self.check()

    def add_sandboxes(self, alive: int, seconds: float) -> None:
        """Count `alive` sandboxes that ran for `seconds` seconds."""
        self._sandbox_s += alive * seconds
        self.check()

    def check(self) -> None:
        """Call `stop` once when a limit is reached."""
        if self._stopped:
            return
        spent = self.spending
        if self._limits.max_tokens is not None and spent.tokens >= self._limits.max_tokens:
            self._end(f"{spent.tokens:,} tokens of --max-tokens {self._limits.max_tokens:,} are used.")
        elif (
            self._limits.max_cost is not None and spent.cost_usd is not None and spent.cost_usd >= self._limits.max_cost
        ):
            self._end(f"${spent.cost_usd:.4g} of --max-cost ${self._limits.max_cost:g} is spent.")
        elif self._limits.max_time_s is not None and self._clock() - self._began >= self._limits.max_time_s:
            self._end(f"The run has taken --max-time, {self._limits.max_time_s:g} s.")

    def _end(self, reason: str) -> None:
        self._stopped = True
        self._stop(reason)

    def _add(self, attempt: str, metadata: Mapping[str, Any], tokens: int) -> None:
        self._episodes += 1
        if not (usage := metadata.get("usage")):
            self._tokens += tokens
            self._largest = (max(self._largest[0], tokens), self._largest[1])
            return
        # A chat engine reports the usage of all tries of an attempt together, so a later try replaces the earlier ones.
        before_tokens, before_cost = self._by_attempt.get(attempt, (0, 0.0))
        used = int(usage.get("prompt_tokens", 0)) + int(usage.get("completion_tokens", 0))
        cost = usage.get("cost_usd")
        self._tokens += max(0, used - before_tokens)
        if cost is not None:
            self._charged = (self._charged or 0.0) + max(0.0, float(cost) - before_cost)
        self._by_attempt[attempt] = (used, float(cost or 0.0))
        self._largest = (max(self._largest[0], used), max(self._largest[1], float(cost or 0.0)))

    def _add_judging(self, metadata: Mapping[str, Any]) -> None:
        """Count the judgement of a recorded attempt; those of this process are counted by their judge."""
        usage = metadata.get("judge", {}).get("usage", {})
        self._tokens += int(usage.get("prompt_tokens", 0)) + int(usage.get("completion_tokens", 0))
        if (judged := usage.get("cost_usd")) is not None:
            self._charged = (self._charged or 0.0) + float(judged)

    def _estimate(self) -> None:
        """Report once the expected usage of all planned episodes, from the first ones."""
        played = self._episodes - self._known
        if self._estimated or self._planned is None or played < FIRST_ESTIMATE:
            return
        self._estimated = True
        if self._is_asked:
            forecast = _forecast(self.document(), self._known + self._planned)
            self._tell(f"Estimate from the first {played} episodes: {forecast}")


def make_meter(settings: Settings, reporter: Reporter, stopper: Stopper) -> Meter:
    """Return the meter of a run, which stops it at its limits.

    Raises:
        ConfigError: A limit could never be reached: the engine has no tokens, or nothing has a price.
    """
    gpus = len({*settings.model.engine_devices, *settings.model.learner_devices})
    _check_limits(settings, gpus)
    return Meter(settings.run, gpus=gpus, stop=stopper.spend_no_more, tell=reporter.line)


def _check_limits(settings: Settings, gpus: int) -> None:
    run, engine = settings.run, settings.engine
    episode = settings.generation.max_episode_tokens
    limit = "--max-tokens" if run.max_tokens is not None else "--max-episode-tokens" if episode is not None else ""
    if limit and registry().find("engine", engine.name).modelless:
        raise ConfigError(
            f"The engine {engine.name} uses no tokens, so {limit} would have no effect.",
            remedy=f"leave {limit} out",
        )
    if registry().find("engine", engine.name).remote:
        return  # whether its model has a price is known when the engine is made: `Meter.check_priced`
    priced = run.sandbox_hour_price or (gpus and run.gpu_hour_price) or engine.options.get("prices")
    priced = priced or settings.grader.options.get("prices")
    if run.max_cost is not None and not priced:
        raise _no_price()


def _no_price() -> ConfigError:
    return ConfigError(
        "No part of this run has a price, so --max-cost would have no effect.",
        remedy="--set run.sandbox_hour_price=PRICE; or run.gpu_hour_price, engine.options.prices of a service, or "
        "grader.options.prices of a judge",
    )


def find_earlier(run: Path, settings: Settings) -> tuple[Path, Mapping[str, Any]] | None:
    """Return the newest run in the same parent folder with the same policy, engine and environment, and its usage.

    Returns:
        Folder of the run and its usage; None if there is none.
    """
    wanted = (settings.model.name, settings.engine.name, settings.environment.name)
    files = sorted(run.parent.glob("*/run.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        spent = read_document(file).get(SPENT)
        if file.parent == run or not isinstance(spent, Mapping) or not spent.get("episodes"):
            continue
        stored = read_document(file.with_name("settings.json"))
        played = tuple(stored.get(section, {}).get("name") for section in ("model", "engine", "environment"))
        if played == wanted:
            return file.parent, spent
    return None


def _forecast(spent: Mapping[str, Any], episodes: int) -> str:
    factor = episodes / int(spent["episodes"])
    cost = "" if spent.get("cost_usd") is None else f" and ${float(spent['cost_usd']) * factor:.3g}"
    return f"{episodes:,} episodes use about {float(spent['tokens']) * factor:,.0f} tokens{cost}."
