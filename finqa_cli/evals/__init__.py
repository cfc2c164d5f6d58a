"""What an evaluation says: accuracy with an honest interval, breakdowns, one row per attempt. Pure."""

from finqa_cli.evals.intervals import Interval, clustered_interval, t_quantile
from finqa_cli.evals.report import EvalReport, KindReport, item_rows, summarize

__all__ = [
    "EvalReport",
    "Interval",
    "KindReport",
    "clustered_interval",
    "item_rows",
    "summarize",
    "t_quantile",
]
