"""Types of the lines of `metrics.jsonl`, with the unit of each key and advice for the page of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import ConfigDict
from written_types import ABSENT, Written

from finqa_cli.algorithms.group_report import GroupStatistics
from finqa_cli.statistics import EvalReport

AGES = {"^staleness_tokens_[0-9]+$": {"type": "number", "description": "Trained tokens of this age in versions."}}


class MetricsLine(Written):
    """What every line has."""

    schema_version: Literal[1]
    """Version of the layout of this line."""
    kind: str
    """What the line is about."""
    iteration: int
    """Iteration of `finqa train`, or optimizer step of `sft` and `dpo`; 0: before the first one."""


class Rounds(Written):
    """Episodes of an iteration."""

    policy_version: int
    """Number of the policy that the engine served."""
    rounds: int
    """Rollout rounds until there were enough groups with signal."""
    turns_mean: float
    """Mean number of assistant turns."""
    retries: int
    """Attempts that were played again after a fault."""
    recoveries: int
    """Episodes that continued in a new session after a lost connection."""
    reward_interval: tuple[float, float] = ABSENT
    """95 % interval of `reward_mean`, clustered by question; absent if it is not known."""
    successful: int
    """Number of right attempts."""
    success_rate: float
    """Right attempts divided by graded attempts."""
    measures: dict[str, Any] = ABSENT
    """Figures that the environment computes itself; absent if it has none."""


class Ages(Written):
    """Age of the trained tokens: policy versions between sampling and the update. Absent if nothing was trained on."""

    model_config = ConfigDict(json_schema_extra={"patternProperties": AGES})

    staleness_mean: float = ABSENT
    """Mean age of the trained tokens."""
    staleness_max: float = ABSENT
    """Largest age."""


class OptimizerSteps(Written):
    """Optimizer steps of the iteration. All but `updates` are absent if there was no step."""

    updates: int
    """Number of optimizer steps."""
    loss: float = ABSENT
    """Mean loss of the steps."""
    grad_norm: float = ABSENT
    """Largest global gradient norm before clipping."""
    learning_rate: float = ABSENT
    """Learning rate of the last step."""
    tokens: int = ABSENT
    """Tokens of the forward passes, without padding."""
    loss_tokens: int = ABSENT
    """Tokens with loss."""


class PolicyGradient(Written):
    """Figures of the first optimizer step: GRPO and its variants, RLOO, REINFORCE and PPO."""

    entropy: float = ABSENT
    """Mean entropy of the policy at the sampled tokens."""
    ratio_mean: float = ABSENT
    """Mean probability ratio to the anchor, around which steps are clipped."""
    clip_fraction: float = ABSENT
    """Share of tokens whose gradient the clip changes."""
    dual_clip_fraction: float = ABSENT
    """Share of tokens at the lower bound of a dual clip; only with `dual_clip`."""
    logprob_difference_mean: float = ABSENT
    """Mean absolute difference of log-probabilities between the learner and the engine that sampled."""
    logprob_difference_max: float = ABSENT
    """Largest such difference."""
    kl: float = ABSENT
    """Estimated KL divergence (k3) from the policy that sampled, per token."""
    kl_proximal: float = ABSENT
    """Estimated KL divergence from the anchor, per token; with several steps per iteration."""
    kl_reference: float = ABSENT
    """Estimated KL divergence from the reference policy, per token; only with a KL penalty or term."""
    importance_weight_mean: float = ABSENT
    """Mean weight that corrects for the sampler; only with an off-policy correction."""
    importance_truncated: float = ABSENT
    """Share of tokens whose weight was capped; with `train.off_policy` `token`."""
    tokens_masked: float = ABSENT
    """Share of tokens whose weight was set to 0; with `icepop`."""
    sequences_masked: float = ABSENT
    """Share of sequences whose weight was set to 0; with `sequence` and `geometric`."""
    kl_last_step: float = ABSENT
    """KL divergence that the last step reported; if the optimizer sets its own passes."""
    updates_skipped: float = ABSENT
    """Steps that were left out because the KL divergence had reached its target; as `kl_last_step`."""
    episodes_truncated: float = ABSENT
    """Episodes that the token limit cut; with `train.truncated` `mask` or `penalize`."""
    length_penalty_mean: float = ABSENT
    """Mean penalty for long completions; with `train.truncated=penalize`."""


class ValueFunction(Written):
    """Figures of PPO's value function; absent for other methods."""

    value_loss: float = ABSENT
    """Mean squared error of the values, clipped."""
    value_clip_fraction: float = ABSENT
    """Share of tokens whose value error the clip changes."""
    value_grad_norm: float = ABSENT
    """Gradient norm of the value function before clipping."""
    explained_variance: float = ABSENT
    """1 - Var(returns - values) / Var(returns): 1 is perfect, 0 no better than a constant."""
    return_mean: float = ABSENT
    """Mean return."""
    value_mean: float = ABSENT
    """Mean value."""


class WeightSync(Written):
    """Weights that the engine loaded after the iteration, and the probe that compares engine and learner."""

    sync_bytes: int = ABSENT
    """Bytes of weights that were written for the engine; absent if there was no sync."""
    probe_difference: float = ABSENT
    """Mean absolute difference of log-probabilities without outliers, of the replica that differs most."""
    probe_largest: float = ABSENT
    """Largest absolute difference of any token."""
    probe_looks: int = ABSENT
    """Comparisons that were needed: 2 if the first one differed by more than the tolerance."""


class Timing(Written):
    """Seconds of the phases of an iteration; the only figures of a line that depend on time."""

    rollout_s: float
    """From the first episode of the iteration to its last."""
    learner_waits_s: float
    """Time in which the learner waited for episodes."""
    rollouts_wait_s: float
    """Time in which the rollouts waited for the learner."""
    update_s: float
    """Optimizer steps."""
    sync_s: float
    """Publishing and loading of the weights, with the probe."""
    publish_s: float = ABSENT
    """Part of `sync_s`: writing the weights."""
    load_s: float = ABSENT
    """Part of `sync_s`: loading them into the engine."""
    probe_s: float = ABSENT
    """Part of `sync_s`: the probe."""
    iteration_s: float
    """The whole iteration."""
    length_bias_seconds: float
    """As `length_bias`, of the seconds of the episodes instead of their turns."""


class TrainLine(MetricsLine, Rounds, Ages, OptimizerSteps, PolicyGradient, ValueFunction, WeightSync):
    """An iteration of `finqa train`. Loss functions of plugins may add further numbers."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"patternProperties": AGES})
    also = (GroupStatistics,)
    __pydantic_extra__: dict[str, float]

    kind: Literal["train"]
    timing: Timing
    """Seconds of the phases."""


class EvalLine(MetricsLine):
    """An evaluation on held-out questions during `finqa train`, with the figures of `report.json` of `finqa eval`."""

    also = (EvalReport,)

    kind: Literal["eval"]
    policy_version: int
    """Number of the policy that was evaluated."""
    temperature: float
    """Sampling temperature; 0: greedy."""
    split: str
    """Split of the questions."""


class RolloutTiming(Written):
    """Seconds of a dry run's iteration."""

    rollout_s: float
    """From the first episode of the iteration to its last."""


class RolloutLine(MetricsLine):
    """An iteration of `finqa train --dry-run`, which plays and does not train."""

    kind: Literal["rollout"]
    episodes: int
    """Attempts, faults included."""
    faults: int
    """Attempts that ended in faults."""
    successful: int
    """Number of right attempts."""
    success_rate: float
    """Right attempts divided by graded attempts."""
    reward_mean: float
    """Mean reward of the graded attempts."""
    turns_mean: float
    """Mean number of assistant turns."""
    measures: dict[str, Any] = ABSENT
    """Figures that the environment computes itself; absent if it has none."""
    timing: RolloutTiming
    """Seconds of the phases."""


class StepTiming(Written):
    """Seconds of an optimizer step."""

    update_s: float
    """The optimizer step."""


class FileStep(MetricsLine):
    """An optimizer step of `finqa sft` or `dpo`."""

    loss: float
    """Loss of the step."""
    grad_norm: float
    """Global gradient norm before clipping."""
    learning_rate: float
    """Learning rate of the step."""
    tokens: int
    """Tokens of the forward pass, without padding."""
    loss_tokens: int
    """Tokens with loss."""
    timing: StepTiming
    """Seconds of the step."""


class SftLine(FileStep):
    """An optimizer step of `finqa sft`."""

    kind: Literal["sft"]
    episode_loss: float
    """Loss of the step per demonstration."""


class Rates(Written):
    """Rates over the answers to held-out questions; absent without questions, and before the first step."""

    questions: int = ABSENT
    """Number of graded answers."""
    faults: int = ABSENT
    """Number of attempts that ended in faults."""
    parse_rate: float | None = ABSENT
    """Share of answers in the requested format; null if no format is requested."""
    accuracy: float | None = ABSENT
    """Share of right answers."""
    reward_mean: float | None = ABSENT
    """Mean total reward."""
    cut_replies: dict[str, int] = ABSENT
    """Answers with a reply that was cut at `generation.max_gen_tokens`, by question type."""


class ValidationLine(MetricsLine, Rates):
    """An evaluation during `finqa sft`."""

    kind: Literal["validation"]
    validation_loss: float | None = ABSENT
    """Loss on held-out demonstrations; null without them."""
    validation_episode_loss: float | None = ABSENT
    """The same per demonstration; null without them."""


class DpoLine(FileStep):
    """An optimizer step of `finqa dpo`. Loss functions of plugins may add further numbers."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float]

    kind: Literal["dpo"]
    pairs: int
    """Pairs of the step."""
    entropy: float
    """Mean entropy of the policy at the tokens of both sides."""
    preference_accuracy: float
    """Share of pairs whose chosen attempt the policy prefers, relative to the reference; a tie counts half."""
    reward_margin: float
    """Mean of `reward_chosen` - `reward_rejected`."""
    reward_chosen: float
    """beta times the mean log-ratio to the reference, of chosen attempts."""
    reward_rejected: float
    """beta times the mean log-ratio to the reference, of rejected attempts."""


class PairsLine(MetricsLine, Rates):
    """An evaluation during `finqa dpo`: on held-out pairs, and on held-out questions if there are any."""

    kind: Literal["held_out"]
    step: int = ABSENT
    """Same as `iteration`. This and the next fields up to `kl` are absent without held-out pairs."""
    pairs: int = ABSENT
    """Number of held-out pairs."""
    preference_accuracy: float = ABSENT
    """Share of held-out pairs whose chosen attempt the policy prefers, relative to the reference."""
    preference_accuracy_interval: tuple[float, float] = ABSENT
    """95 % interval of the share of preferred pairs, clustered by company."""
    ranking_accuracy: float = ABSENT
    """Share of pairs whose chosen attempt has the higher probability, without the reference."""
    margin: float = ABSENT
    """Mean of log pi/ref(chosen) - log pi/ref(rejected)."""
    kl: float | None = ABSENT
    """Estimated KL divergence from the reference per token; null without a reference."""


LINES = (TrainLine, EvalLine, RolloutLine, SftLine, ValidationLine, DpoLine, PairsLine)
"""One type for each `kind`."""

_COUNT, _SHARE, _NATS, _S = "count", "share, 0 to 1", "nats", "s"
_REWARDS = "[Rewards](../guides/rewards.md)"
_FAULTS = "The errors: `finqa show RUN`; [faults](../concepts/faults.md)"
_HARD = "Many: the tasks are too hard for the policy. Train with `finqa sft` first, or use easier tasks"
_EASY = "Many: the tasks are learned already. Use harder tasks"
_DRIFT = "Grows without end: lower `--lr`, or add a KL term"
_ENGINE = "Above 0.1 on average: engine and learner differ in precision, template or weights; [vLLM](../guides/vllm.md)"
_STALE = "Lower `--max-staleness`; [rollouts ahead](../guides/rollouts-ahead.md)"
_SPEED = "[Placement](../guides/placement.md)"
_FORM = "Low: teach the format with `finqa sft`"
_METHODS = "[Methods](../guides/methods.md)"

GUIDE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "step": ("number", ""),
        "policy_version": ("number", ""),
        "rounds": (
            _COUNT,
            "At `train.max_rollout_rounds` again and again: too few groups have signal; see `informative`",
        ),
        "turns_mean": ("turns", "At `generation.max_steps`: episodes are cut. Read some with `finqa show RUN EPISODE`"),
        "retries": (_COUNT, _FAULTS),
        "recoveries": (_COUNT, _FAULTS),
        "reward_interval": ("reward", "Wide: more groups per iteration (`--target-groups-per-iter`)"),
        "successful": (_COUNT, ""),
        "success_rate": (_SHARE, "Stays near 0: `finqa sft` first. Grows while the evaluation does not: more tasks"),
        "measures": ("", ""),
        "groups": (_COUNT, ""),
        "informative": (_COUNT, "Few of `groups`: larger `--group-size`, higher temperature, other tasks"),
        "zero_variance_all_0": (_COUNT, _HARD),
        "zero_variance_all_1": (_COUNT, _EASY),
        "zero_variance_other": (_COUNT, f"Many: the reward has too few levels. {_REWARDS}"),
        "over_age": (_COUNT, _STALE),
        "too_few": (_COUNT, _FAULTS),
        "dropped_other": (_COUNT, f"See the description of the optimizer. {_METHODS}"),
        "episodes": (_COUNT, ""),
        "faults": (_COUNT, _FAULTS),
        "episodes_in_groups": (_COUNT, ""),
        "episodes_trained": (_COUNT, "Few of `episodes`: see `informative`"),
        "reward_mean": ("reward", f"Does not grow: compare with a control (`--shuffle-rewards`). {_REWARDS}"),
        "reward_std": ("reward", "Near 0: no group has signal; see `informative`"),
        "length_bias": ("ratio", "Below 0: faults end long episodes, so that short ones are preferred"),
        "staleness_mean": ("versions", _STALE),
        "staleness_max": ("versions", _STALE),
        "staleness_tokens_N": ("tokens", ""),
        "updates": (_COUNT, "0: no group had signal; see `informative`"),
        "loss": ("nats times advantage", "It does not measure success; see `reward_mean`"),
        "grad_norm": ("", "Jumps: lower `--lr`, or `train.max_grad_norm`"),
        "learning_rate": ("", ""),
        "tokens": ("tokens", ""),
        "loss_tokens": ("tokens", ""),
        "entropy": (
            f"{_NATS} per token",
            "Falls to 0 early: the policy no longer explores; lower `--lr`, or an entropy bonus",
        ),
        "ratio_mean": ("ratio", "Far from 1: too many steps per iteration"),
        "clip_fraction": (_SHARE, "Above 0.3: lower `--lr` or fewer steps per iteration"),
        "dual_clip_fraction": (_SHARE, "As `clip_fraction`"),
        "logprob_difference_mean": (_NATS, _ENGINE),
        "logprob_difference_max": (_NATS, "Single unlikely tokens may differ by more than 1; see the mean"),
        "kl": (f"{_NATS} per token", f"{_DRIFT}. Large in the first iteration: see `logprob_difference_mean`"),
        "kl_proximal": (f"{_NATS} per token", _DRIFT),
        "kl_reference": (f"{_NATS} per token", _DRIFT),
        "importance_weight_mean": ("ratio", "Far from 1: see `logprob_difference_mean` and `staleness_mean`"),
        "importance_truncated": (_SHARE, "As `importance_weight_mean`"),
        "tokens_masked": (_SHARE, "As `importance_weight_mean`"),
        "sequences_masked": (_SHARE, "As `importance_weight_mean`"),
        "kl_last_step": (f"{_NATS} per token", "Above the target in the first step: lower `--lr`"),
        "updates_skipped": (_COUNT, "Often above 0: lower `--lr`"),
        "episodes_truncated": (_COUNT, "Many: raise `--max-gen-tokens`"),
        "length_penalty_mean": ("reward", "As `episodes_truncated`"),
        "value_loss": ("squared reward", "Grows: lower the learning rate of the value function"),
        "value_clip_fraction": (_SHARE, "Near 1: the values move too fast"),
        "value_grad_norm": ("", "Jumps: as `value_loss`"),
        "explained_variance": ("at most 1", "Below 0 after some iterations: the values are worse than a constant"),
        "return_mean": ("reward", ""),
        "value_mean": ("reward", "Far from `return_mean`: see `explained_variance`"),
        "sync_bytes": ("bytes", ""),
        "probe_difference": (_NATS, _ENGINE),
        "probe_largest": (_NATS, "Above 3: not rounding; the engine serves other weights"),
        "probe_looks": (_COUNT, "2: see the event `probe_differs`"),
        "timing": (_S, _SPEED),
        "timing.rollout_s": (_S, "The largest part: more sandboxes (`--sandboxes`), or a faster engine"),
        "timing.learner_waits_s": (_S, f"Near `iteration_s`: the rollouts are the bottleneck. {_SPEED}"),
        "timing.rollouts_wait_s": (_S, f"Near `iteration_s`: the learner is the bottleneck. {_SPEED}"),
        "timing.update_s": (_S, "The largest part: larger micro-batches (`train.token_budget`), more GPUs"),
        "timing.sync_s": (_S, "See its parts"),
        "timing.publish_s": (_S, "Large: the disk is slow"),
        "timing.load_s": (_S, "Large: the engine loads whole models; LoRA is faster"),
        "timing.probe_s": (_S, ""),
        "timing.iteration_s": (_S, ""),
        "timing.length_bias_seconds": ("ratio", "As `length_bias`"),
        "temperature": ("", ""),
        "split": ("", ""),
        "questions": (_COUNT, ""),
        "clusters": (_COUNT, "Few: the interval is wide however many questions there are"),
        "clustered_by": ("", ""),
        "accuracy": (_SHARE, "Does not grow while `reward_mean` does: the policy learns the training tasks only"),
        "accuracy_interval": (_SHARE, "Wide: more questions (`eval.limit`); [evaluation](../guides/evaluation.md)"),
        "components": ("reward", _REWARDS),
        "sampled_tokens_mean": ("tokens", "At the limit: raise `--max-gen-tokens`"),
        "sql_queries": (_COUNT, ""),
        "sql_error_rate": (_SHARE, "High: read the errors with `finqa show RUN EPISODE`"),
        "quoted_years": (_SHARE, "Low: the policy writes years as numbers, so that SQL returns the number itself"),
        "statuses": (_COUNT, "Many `max_turns`, `max_tokens` or `parse_error`: raise the limit, or `finqa sft` first"),
        "by_kind": ("", ""),
        "cut_replies": (_COUNT, "Not empty: raise `--max-gen-tokens`"),
        "usage": ("", ""),
        "reasons": (_COUNT, "Which mistakes are most frequent; see the attempts with `finqa show RUN --failed`"),
        "validation_loss": (
            f"{_NATS} per token",
            "Grows while `loss` falls: overfitting; fewer `--epochs`. `checkpoints/best` has the best policy",
        ),
        "validation_episode_loss": (
            f"{_NATS} per episode",
            "Above 1 although `validation_loss` is small: the policy still guesses in each episode; train longer",
        ),
        "episode_loss": (f"{_NATS} per episode", "As `validation_episode_loss`"),
        "parse_rate": (_SHARE, _FORM),
        "pairs": (_COUNT, ""),
        "preference_accuracy": (_SHARE, "Stays at 0.5: the pairs are too alike; a larger `--margin` for `finqa prefs`"),
        "preference_accuracy_interval": (
            _SHARE,
            "Wide: more held-out pairs (`finqa prefs` with `--held-out-share`)",
        ),
        "reward_margin": (_NATS, "Grows without end: overfitting; see `kl` of `held_out`"),
        "reward_chosen": (_NATS, "Falls with `reward_rejected`: both sides become unlikely; lower `--lr`"),
        "reward_rejected": (_NATS, ""),
        "ranking_accuracy": (_SHARE, ""),
        "margin": (_NATS, ""),
        "EvalLine.reward_mean": ("reward", "As `accuracy`"),
        "RolloutLine.reward_mean": ("reward", f"0 with `scripted`: reward or data are wrong. {_REWARDS}"),
        "SftLine.loss": (f"{_NATS} per token", "Does not fall: higher `--lr`. Jumps: lower `--lr`"),
        "ValidationLine.accuracy": (_SHARE, "Stays at 0: more demonstrations, or more `--epochs`"),
        "ValidationLine.reward_mean": ("reward", "As `accuracy`"),
        "DpoLine.loss": (_NATS, "Stays at its first value (`sigmoid`: 0.693): higher `--lr`. Near 0: overfitting"),
        "PairsLine.reward_mean": (
            "reward",
            "Falls while the share of preferred pairs grows: overfitting; fewer `--epochs`",
        ),
        "PairsLine.kl": (
            f"{_NATS} per token",
            "Grows without end: overfitting; fewer `--epochs`, or a larger `--beta`",
        ),
    }
)
"""Key -> its unit, and the sign of trouble with what to do or where to read on. Keys of `timing` have its prefix; an
entry for one type of line has the name of the type before the key."""
