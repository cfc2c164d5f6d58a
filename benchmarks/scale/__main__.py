"""What a run with many sandboxes takes and gives: time to fill, what limits, episodes, cost, and what to change.

    python -m benchmarks.scale --sandboxes 500 --hours 8 [--set PATH=VALUE] [--json]

It is simulated in virtual time with the settings of `finqa train` (files, environment variables, `--set`). Those that
are not given have the defaults of a machine with GPUs. Nothing is started, and no service is called.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.scale.engine_latency import LatencyModel
from benchmarks.scale.plan import GPUS_PER_REPLICA, LIMITS, NOT_BUILT, Planner, Prices, ScalePlan, draw_turns
from benchmarks.scale.types import Costs, Design
from finqa_cli.commands.shared.output import plain_table, plural
from finqa_cli.errors import FinqaError, UsageError
from finqa_cli.extend import registry
from finqa_cli.settings import Loaded
from finqa_cli.wiring.command_settings import read_layers

PROVIDER = "daytona"
"""Provider of the plan if no sandbox is chosen: local sandboxes have no account limits."""

YEAR_H = 8760.0

SETTINGS = {
    "sandboxes": "pool.sandboxes",
    "sessions_per_sandbox": "pool.sessions_per_sandbox",
    "max_concurrent_play": "pool.max_concurrent_play",
    "max_concurrent_create": "pool.max_concurrent_create",
    "group_size": "train.group_size",
    "engine_replicas": "generation.engine_replicas",
}
"""Flag -> path of the setting, a whole number; other settings are given with `--set`."""

LOADS = {
    "hours": (float, None, "hours of the run, starts of sandboxes included"),
    "workers": (int, 0, "rollout workers in addition to the controller (cluster.rollout_workers); 0: one process"),
    "accounts": (int, 1, "accounts of the sandbox provider; more than 1: not built yet"),
    "turns": (float, 4.5, "mean turns of an episode"),
    "reply_tokens": (float, 70.0, "median tokens of a turn"),
    "step_ms": (float, 20.0, "time of an engine replica for a token of one request, in ms"),
    "request_ms": (float, 0.06, "time that each further concurrent request adds to it, in ms"),
    "turn_cpu_ms": (float, 3.0, "CPU time of this machine for a turn, in ms"),
}
"""Flag -> type, default and help; without a default it must be given."""


@dataclass(frozen=True, slots=True)
class Load:
    """The flags that are no settings; see `--help`."""

    hours: float
    workers: int
    accounts: int
    fresh: bool
    turns: float
    reply_tokens: float
    step_ms: float
    request_ms: float
    turn_cpu_ms: float


def plan_sandboxes(flags: Mapping[str, Any], assignments: Sequence[str], load: Load) -> ScalePlan:
    """Plan a run with settings by their paths and those of `--set`.

    Raises:
        ConfigError: A setting is unknown or wrong.
        UsageError: A value is out of range, or the provider's limit of creates is not known.
    """
    loaded = read_layers(flags=flags, assignments=assignments, assume_cuda=True)
    settings = loaded.settings
    limit, window_s = _create_limit(loaded)
    pool = settings.pool
    design = Design(
        sandboxes=pool.sandboxes,
        episodes_at_once=pool.concurrency,
        sessions_per_sandbox=pool.sessions_per_sandbox,
        starting=pool.max_concurrent_create,
        accounts=load.accounts,
        create_limit=limit,
        create_window_s=window_s,
        workers=load.workers,
        replicas=settings.generation.engine_replicas,
        group_size=settings.train.group_size,
        fresh=load.fresh,
    )
    _check(design, load)
    shared = "model.tensor_parallel_size"
    prices = Prices(
        sandbox_hour=settings.run.sandbox_hour_price,
        gpu_hour=settings.run.gpu_hour_price,
        gpus_per_replica=GPUS_PER_REPLICA if shared in loaded.undecided else settings.model.tensor_parallel_size,
    )
    latency = LatencyModel(
        step_s=load.step_ms / 1000, step_s_per_request=load.request_ms / 1000, median_tokens=load.reply_tokens
    )
    planner = Planner(Costs(turn_s=load.turn_cpu_ms / 1000), latency, draw_turns(load.turns))
    return planner.plan(design, hours=load.hours, prices=prices)


def _create_limit(loaded: Loaded) -> tuple[int, float]:
    """Return the number of creates that an account allows in a window, and the length of the window in seconds.

    Raises:
        UsageError: The provider has no such limit.
    """
    chosen = loaded.settings.sandbox
    name = PROVIDER if "sandbox" in loaded.choices.reasons else chosen.name
    config = registry().config(registry().find("sandbox", name), chosen.options)
    options: Mapping[str, Any] = config.model_dump() if config is not None else {}
    if "create_limit" not in options:
        raise UsageError(
            f"Sandbox provider {name!r} has no known limit of creates, so that there is nothing to plan by.",
            remedy=f"--sandbox {PROVIDER}",
        )
    return int(options["create_limit"]), float(options["create_window_s"])


def _check(design: Design, load: Load) -> None:
    wrong = (
        (not 0 < load.hours <= YEAR_H, f"{load.hours:g} hours are not between 0 and {YEAR_H:g}"),
        (
            design.workers > design.sandboxes,
            f"{design.workers} rollout workers cannot share {design.sandboxes} sandboxes",
        ),
        (design.accounts > design.sandboxes, f"{design.accounts} accounts cannot share {design.sandboxes} sandboxes"),
        (
            design.fresh and design.sessions_per_sandbox > 1,
            f"a fresh sandbox hosts one session, not {design.sessions_per_sandbox}",
        ),
        (not 1 <= load.turns <= 1000, f"{load.turns:g} turns are not between 1 and 1,000"),
        (
            not 1 <= load.reply_tokens <= 100_000,
            f"{load.reply_tokens:g} tokens of a reply are not between 1 and 100,000",
        ),
        *(
            (not (0 <= value < math.inf) or (not value and positive), f"{flag} is {value:g}")
            for flag, value, positive in (
                ("--step-ms", load.step_ms, True),
                ("--request-ms", load.request_ms, False),
                ("--turn-cpu-ms", load.turn_cpu_ms, True),
            )
        ),
    )
    for is_wrong, reason in wrong:
        if is_wrong:
            raise UsageError(f"This cannot be planned: {reason}.", remedy="python -m benchmarks.scale --help")


def document(plan: ScalePlan) -> dict[str, Any]:
    """Return the plan as JSON values. Times are in seconds, shares are of one CPU core, the cost is in USD."""
    full = plan.full
    return {
        "design": asdict(plan.design),
        "not_built": list(plan.not_built),
        "hours": plan.hours,
        "fill_s": plan.fill_s,
        "episodes": plan.episodes,
        "groups": plan.groups,
        "limit": plan.limit,
        "changes": list(plan.changes),
        "when_full": {
            "episodes_at_once": plan.at_once,
            "episodes_per_s": full.episodes_per_s,
            "calls_per_s": full.turns_per_s,
            "controller_share": full.controller,
            "worker_share": max(full.workers, default=None),
            "lag_p99_s": full.lag_p99_s,
            "engine_requests": full.engine_load,
            "engine_slowdown": full.engine_slowdown,
        },
        "sandbox_hours": plan.sandbox_hours,
        "gpu_hours": plan.gpu_hours,
        "cost_usd": plan.cost_usd,
    }


def text(plan: ScalePlan) -> str:
    """Return the plan as text."""
    design, full = plan.design, plan.full
    process = f"{plural(design.workers, 'rollout worker')} and a controller" if design.workers else "one process"
    lines = [
        f"{plural(design.sandboxes, 'sandbox')} in {plural(design.accounts, 'account')} "
        f"with {design.create_limit} creates in {design.create_window_s:g} s each, "
        f"{plural(design.replicas, 'engine replica')}, {process}: simulated for {plan.hours:g} hours."
    ]
    if plan.not_built:
        lines.append(f"This design cannot be run: it needs {' and '.join(plan.not_built)}, {NOT_BUILT}.")
    rows = [
        ["filling", "each episode uses a sandbox up" if plan.fill_s is None else _duration(plan.fill_s)],
        ["episodes", f"{plan.episodes:,}: {plan.groups:,} groups of {design.group_size}"],
        ["when full", f"{plan.at_once:,} episodes at once at most, {full.episodes_per_s:,.1f} a second"],
        [
            "controller" if design.workers else "process",
            f"{full.controller:.0%} of a core, late by {1000 * full.lag_p99_s:.0f} ms (p99)",
        ],
        *([["busiest worker", f"{max(full.workers):.0%} of a core"]] if full.workers else []),
        [
            "engine",
            f"{full.engine_load:,.0f} requests at once, each {full.engine_slowdown:.1f} times as long as one alone",
        ],
        ["cost", _cost(plan)],
        ["limit", LIMITS[plan.limit]],
    ]
    changes = [f"change: {each}" for each in plan.changes]
    room = f"Whether the account has room for them: finqa doctor --sandbox {PROVIDER} --sandboxes {design.sandboxes}"
    assumed = "Assumed: the engine's speed, the provider's latencies, no faults, and a learner that keeps up."
    return "\n".join([*lines, "", plain_table([], rows), "", *changes, "", room, assumed])


def _cost(plan: ScalePlan) -> str:
    used = (
        f"{plan.sandbox_hours:,.0f} sandbox-hours, {plan.gpu_hours:,.0f} GPU-hours of the engine, none of the learner"
    )
    if plan.cost_usd is None:
        return f"{used}; no price is set (run.sandbox_hour_price, run.gpu_hour_price)"
    return f"${plan.cost_usd:,.2f}: {used}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, path in SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=f"setting {path}")
    parser.add_argument("--sandbox", help=f"sandbox provider (default: {PROVIDER})")
    for name, (kind, default, text_of) in LOADS.items():
        shown = text_of if default is None else f"{text_of} (default: {default:g})"
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=kind, default=default, required=default is None, help=shown
        )
    parser.add_argument("--fresh", action="store_true", help="each episode needs a new sandbox")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="a setting; repeatable")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    chosen = vars(parser.parse_args(arguments))
    flags = {path: chosen[name] for name, path in SETTINGS.items() if chosen[name] is not None}
    if chosen["sandbox"] is not None:
        flags["sandbox"] = chosen["sandbox"]
    try:
        planned = plan_sandboxes(flags, chosen["set"], Load(**{name: chosen[name] for name in (*LOADS, "fresh")}))
    except FinqaError as error:
        print(f"{error.message}\nfix: {error.remedy}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(document(planned), indent=2) if chosen["json"] else text(planned))
    return 0


if __name__ == "__main__":
    sys.exit(main())
