"""From graded trajectories to packed batches: credit, samples, packing. Pure; no torch."""

from finqa_cli.algorithms.admission import admitted_groups, informative_share
from finqa_cli.algorithms.credit import (
    assign_credit,
    assign_credit_again,
    attempt_weight,
    batch_credit,
    credited_samples,
)
from finqa_cli.algorithms.gae import estimated, value_metrics, with_values
from finqa_cli.algorithms.group_report import GroupStatistics, group_statistics, length_bias
from finqa_cli.algorithms.normalization import check_normalization, counts_neutral, needs_reference, normalized
from finqa_cli.algorithms.off_policy import correct_off_policy, needs_anchor, with_proximal
from finqa_cli.algorithms.packing import pack, pads
from finqa_cli.algorithms.passes import step_rows
from finqa_cli.algorithms.reference import References, penalized, references, scored_samples
from finqa_cli.algorithms.samples import demonstration_sample, trajectory_samples
from finqa_cli.algorithms.staleness import staleness_metrics, token_ages, without_over_age
from finqa_cli.algorithms.truncation import (
    LengthLimit,
    count_truncated,
    length_penalty,
    mask_truncated,
    penalize_length,
)

__all__ = [
    "GroupStatistics",
    "LengthLimit",
    "References",
    "admitted_groups",
    "assign_credit",
    "assign_credit_again",
    "attempt_weight",
    "batch_credit",
    "check_normalization",
    "correct_off_policy",
    "count_truncated",
    "counts_neutral",
    "credited_samples",
    "demonstration_sample",
    "estimated",
    "group_statistics",
    "informative_share",
    "length_bias",
    "length_penalty",
    "mask_truncated",
    "needs_anchor",
    "needs_reference",
    "normalized",
    "pack",
    "pads",
    "penalize_length",
    "penalized",
    "references",
    "scored_samples",
    "staleness_metrics",
    "step_rows",
    "token_ages",
    "trajectory_samples",
    "value_metrics",
    "with_proximal",
    "with_values",
    "without_over_age",
]
