"""Records of an iteration of training or of a dry run: metrics for files, and lines for the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from finqa_cli.algorithms.group_report import group_statistics, length_bias, staleness_metrics
from finqa_cli.rollout.groups import Collected
from finqa_cli.statistics import is_right, reward_interval
from finqa_cli.types import Group, Trajectory, UpdateReport


def iteration_metrics(
    iteration: int,
    version: int,
    collected: Collected,
    ages: Counter[int],
    reports: Sequence[UpdateReport],
    found: Mapping[str, float],
    timing: dict[str, float],
    measures: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the record of an iteration for metrics.jsonl. Figures that depend on time are only under `timing`.

    Args:
        iteration: Number of the iteration, from 1.
        version: Policy version that the engine served.
        collected: Groups of the iteration.
        ages: Trained tokens by age in versions; see `token_ages`.
        reports: Reports of the optimizer steps.
        found: Further metrics.
        timing: Seconds of the phases.
        measures: The environment's own figures.
    """
    episodes = [trajectory for group in collected.groups for trajectory in group.trajectories]
    turns = [len(trajectory.turns) for trajectory in episodes]
    metrics: dict[str, Any] = {
        "kind": "train",
        "iteration": iteration,
        "policy_version": version,
        "rounds": collected.rounds,
        "turns_mean": sum(turns) / len(turns) if turns else 0.0,
        "retries": sum(trajectory.retries for trajectory in episodes),
        "recoveries": sum(trajectory.recoveries for trajectory in episodes),
        **group_statistics(collected.groups, collected.credits).as_metrics(),
        **_reward_interval(collected.groups),
        **staleness_metrics(ages),
        "updates": len(reports),
        **found,
        **({"measures": dict(measures)} if measures else {}),
    }
    if reports:
        last = reports[-1]
        metrics |= {
            "loss": sum(report.loss for report in reports) / len(reports),
            "grad_norm": max(report.grad_norm for report in reports),
            "learning_rate": last.learning_rate,
            "tokens": sum(report.tokens for report in reports),
            "loss_tokens": sum(report.loss_tokens for report in reports),
            **reports[0].metrics,  # of the first step only, because later steps start from changed weights
        }
    bias = length_bias(collected.groups, lambda trajectory: trajectory.seconds)
    metrics["timing"] = {name: round(value, 4) for name, value in (timing | {"length_bias_seconds": bias}).items()}
    return metrics


def _reward_interval(groups: Sequence[Group]) -> dict[str, list[float]]:
    """Return the 95 % interval of the mean reward, clustered by question; empty if it is not known."""
    scored = [
        (each.reward, group.task.id) for group in groups for each in group.trajectories if each.reward is not None
    ]
    interval = reward_interval([reward for reward, _ in scored], [task for _, task in scored]) if scored else None
    return {"reward_interval": list(interval)} if interval else {}


def success(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return `successful`, the number of right attempts, and `success_rate`, their share of the graded attempts."""
    graded = [each for each in trajectories if each.rewards is not None]
    right = sum(map(is_right, graded))
    return {"successful": right, "success_rate": right / len(graded) if graded else 0.0}


def iteration_line(
    number: int,
    trajectories: Sequence[Trajectory],
    *,
    seconds: float,
    metrics: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return a line: `  Iteration 1: reward=0.500, success=50.0% (2/4), time=45.2s, informative=3/4, loss=-0.01`.

    It has the mean reward and the share of right attempts among the graded ones; the number of faults follows, if any.

    Args:
        number: The iteration.
        trajectories: Its attempts.
        seconds: Time that it took.
        metrics: `informative` of `groups`, and `loss`; absent where nothing is trained.
    """
    graded = [each for each in trajectories if each.rewards is not None]
    found = success(graded)
    reward = sum(each.reward or 0.0 for each in graded) / len(graded) if graded else 0.0
    faults = len(trajectories) - len(graded)
    share = f"{found['success_rate']:.1%} ({found['successful']}/{len(graded)})"
    line = f"  Iteration {number}: reward={reward:.3f}, success={share}, time={seconds:.1f}s"
    parts = [f"faults={faults}"] if faults else []
    if metrics.get("groups"):
        parts.append(f"informative={metrics['informative']}/{metrics['groups']}")
    if "loss" in metrics:
        parts.append(f"loss={metrics['loss']:.4g}")
    return ", ".join([line, *parts])


def summary(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the summary of a training run from the records of its iterations.

    Records of earlier versions of finqa have no successes, and count only as iterations.
    """
    counted = [step for step in steps if "successful" in step]
    played = sum(step["episodes"] for step in counted)
    right = sum(step["successful"] for step in counted)
    graded = played - sum(step["faults"] for step in counted)
    share = f" ({right / graded:.1%})" if graded else ""
    lines = [f"Total trajectories: {played}", f"Successful: {right}{share}", f"Iterations completed: {len(steps)}"]
    learned = any(step.get("updates", 1) for step in steps)
    head = "Training complete!" if learned else "Training ended without an update."
    return "\n".join([head, *(f"  {line}" for line in lines)])
