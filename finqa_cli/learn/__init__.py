"""From graded trajectories to packed batches: credit, samples, packing. Pure; no torch."""

from finqa_cli.learn.admission import admitted_groups, informative_share
from finqa_cli.learn.credit import assign_credit, credited_samples
from finqa_cli.learn.groups import GroupStatistics, group_statistics, length_bias
from finqa_cli.learn.packing import pack
from finqa_cli.learn.samples import demonstration_messages, demonstration_sample, trajectory_sample

__all__ = [
    "GroupStatistics",
    "admitted_groups",
    "assign_credit",
    "credited_samples",
    "demonstration_messages",
    "demonstration_sample",
    "group_statistics",
    "informative_share",
    "length_bias",
    "pack",
    "trajectory_sample",
]
