"""Statistics of evaluations: intervals, paired tests, power, metrics, and a row per attempt. Pure."""

from finqa_cli.statistics.evaluation_report import (
    EvalReport,
    item_rows,
    summarize,
)
from finqa_cli.statistics.finqa_metrics import (
    breakdown_rows,
    choose_samples,
    evaluation_metrics,
    failure_counts,
    k_values,
    pass_at_k,
    pass_hat_k,
)
from finqa_cli.statistics.intervals import (
    Interval,
    clustered_interval,
    clustered_mean,
    t_quantile,
)
from finqa_cli.statistics.outcomes import (
    MALFORMED,
    REASONS,
    Outcome,
    by_question,
    is_right,
    read_outcome,
)
from finqa_cli.statistics.paired import (
    Comparison,
    Scores,
    compare_all,
    exact_mcnemar,
    holm,
    paired_difference,
    scores_of,
)
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

__all__ = [
    "Comparison",
    "Design",
    "EvalReport",
    "Interval",
    "MALFORMED",
    "Observed",
    "Outcome",
    "REASONS",
    "Scores",
    "Variation",
    "assumed_variation",
    "attempts_for",
    "breakdown_rows",
    "by_question",
    "choose_samples",
    "clustered_interval",
    "clustered_mean",
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
    "summarize",
    "t_quantile",
]
