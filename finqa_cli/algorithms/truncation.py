"""Episodes that a limit ended: left out of the loss, or fined for their length. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from finqa_cli.types import Credit, Group, Status, Trajectory

_LIMITS = (Status.MAX_TURNS, Status.MAX_TOKENS, Status.TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLimit:
    """Where the penalty for length begins and ends, in tokens of one completion.

    Attributes:
        longest: From here on the penalty is 1.
        buffer: So many tokens before it begins, at 0.
    """

    longest: int
    buffer: int


def is_truncated(trajectory: Trajectory) -> bool:
    """Whether a limit ended the episode: of turns, context or time, or of tokens in its last completion."""
    cut = bool(trajectory.turns) and trajectory.turns[-1].stop == "length"
    return not trajectory.status.is_fault and (trajectory.status in _LIMITS or cut)


def mask_truncated(groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
    """The credits without an advantage for members that a limit ended, so that no loss has them or counts them.

    Their rewards stay in what the others are compared with: overlong filtering, which masks the loss alone. DAPO, arXiv
    2503.14476, section 3.4; TRL's `mask_truncated_completions`.
    """
    return tuple(
        replace(
            credit,
            advantages=tuple(
                None if is_truncated(member) else advantage
                for member, advantage in zip(group.trajectories, credit.advantages, strict=True)
            ),
        )
        for group, credit in zip(groups, credits, strict=True)
    )


def count_truncated(groups: Sequence[Group], credits: Sequence[Credit]) -> int:
    """How many members with an advantage, of groups that are trained on, a limit ended."""
    return sum(
        is_truncated(member) and advantage is not None
        for group, credit in zip(groups, credits, strict=True)
        if not credit.dropped
        for member, advantage in zip(group.trajectories, credit.advantages, strict=True)
    )


def length_penalty(trajectory: Trajectory, limit: LengthLimit) -> float:
    """From 0 to 1: how far the episode's longest completion is into the buffer; 1 for one that a limit ended.

    The soft overlong punishment, with the opposite sign: DAPO, arXiv 2503.14476, equation 13, whose response is one
    completion.
    """
    if is_truncated(trajectory):
        return 1.0
    tokens = max((len(turn.completion_ids) for turn in trajectory.turns), default=0)
    return min(1.0, max(0.0, (tokens - (limit.longest - limit.buffer)) / limit.buffer))


def penalize_length(groups: Sequence[Group], limit: LengthLimit) -> tuple[Group, ...]:
    """The groups with the penalty taken from the reward of each graded member."""

    def fined(trajectory: Trajectory) -> Trajectory:
        if trajectory.rewards is None:
            return trajectory
        total = trajectory.rewards.total - length_penalty(trajectory, limit)
        return replace(trajectory, rewards=replace(trajectory.rewards, total=total))

    return tuple(replace(group, trajectories=tuple(map(fined, group.trajectories))) for group in groups)
