"""What evaluations say, alone and against each other: intervals, tests, power, metrics, a row per attempt. Pure."""

from finqa_cli.statistics.clusters import ClusteredMean, clustered_mean
from finqa_cli.statistics.evaluation_report import EvalReport, KindReport, is_right, item_rows, summarize
from finqa_cli.statistics.finqa_metrics import breakdown_rows, choose_samples, evaluation_metrics, failure_counts
from finqa_cli.statistics.intervals import Interval, clustered_interval
from finqa_cli.statistics.many_policies import Comparison, Scores, common_questions, compare_all, scores_of
from finqa_cli.statistics.outcomes import MALFORMED, REASONS, Outcome, by_question, read_outcome, share_right
from finqa_cli.statistics.paired import PairedDifference, exact_mcnemar, holm, paired_difference
from finqa_cli.statistics.power import (
    Design,
    Observed,
    Variation,
    assumed_variation,
    attempts_for,
    detectable,
    observe,
    observed_variation,
    questions_for,
)
from finqa_cli.statistics.repeated_attempts import k_values, pass_at_k, pass_hat_k
from finqa_cli.statistics.student import t_quantile

__all__ = [
    "MALFORMED",
    "REASONS",
    "ClusteredMean",
    "Comparison",
    "Design",
    "EvalReport",
    "Interval",
    "KindReport",
    "Observed",
    "Outcome",
    "PairedDifference",
    "Scores",
    "Variation",
    "assumed_variation",
    "attempts_for",
    "breakdown_rows",
    "by_question",
    "choose_samples",
    "clustered_interval",
    "clustered_mean",
    "common_questions",
    "compare_all",
    "detectable",
    "evaluation_metrics",
    "exact_mcnemar",
    "failure_counts",
    "holm",
    "is_right",
    "item_rows",
    "k_values",
    "observe",
    "observed_variation",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "questions_for",
    "read_outcome",
    "scores_of",
    "share_right",
    "summarize",
    "t_quantile",
]
