"""From graded trajectories to packed batches: credit, samples, packing. Pure; no torch."""

from finqa_cli.learn.admission import admitted_groups, informative_share
from finqa_cli.learn.credit import assign_credit, credited_samples
from finqa_cli.learn.groups import GroupStatistics, group_statistics, length_bias
from finqa_cli.learn.off_policy import corrected, is_decoupled, with_proximal
from finqa_cli.learn.packing import pack
from finqa_cli.learn.samples import demonstration_sample, trajectory_samples
from finqa_cli.learn.staleness import staleness_metrics, token_ages, without_over_age

__all__ = [
    "GroupStatistics",
    "admitted_groups",
    "assign_credit",
    "corrected",
    "credited_samples",
    "demonstration_sample",
    "group_statistics",
    "informative_share",
    "is_decoupled",
    "length_bias",
    "pack",
    "staleness_metrics",
    "token_ages",
    "trajectory_samples",
    "with_proximal",
    "without_over_age",
]
