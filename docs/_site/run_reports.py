"""Types of the reports in run folders and in the folders of `finqa prefs` and `compare`, and of rows of CSV files."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field
from written_types import ABSENT, Written

from finqa_cli.statistics import EvalReport
from finqa_cli.statistics.finqa_metrics import DEFINITIONS
from finqa_cli.statistics.paired import PairedDifference
from finqa_cli.training.preference.build_pairs import PairRules, Tally
from finqa_cli.types import DataInfo

Text, Counts = dict[str, str], dict[str, int]


def metric(name: str) -> Any:
    """Return the field of a metric of an evaluation, with its definition as the description."""
    return Field(description=f"{DEFINITIONS[name][0].upper()}{DEFINITIONS[name][1:]}.")


class Asked(Written):
    """What an evaluation or a sampling run played."""

    target: str
    """Policy or engine that played."""
    data: DataInfo
    """Data set."""
    split: str
    """Split of the questions."""


class EvalReportFile(Asked):
    """`report.json` of `finqa eval`. Shares and means are over graded attempts."""

    also = (EvalReport,)


class Share(Written):
    """A share with its interval."""

    value: float
    """The share, from 0 to 1."""
    interval: tuple[float, float]
    """95 % interval, clustered by company or what the environment names."""
    companies: int
    """Number of clusters."""


class Attempts(Written):
    """Numbers of graded attempts at one question."""

    fewest: int
    """Smallest number."""
    most: int
    """Largest number."""


class MetricsFile(Asked):
    """`metrics.json` of `finqa eval`. A metric is null if no attempt is judged by it."""

    schema_version: Literal[1]
    """Version of the layout of this file."""
    measures: dict[str, Any]
    """Figures that the environment computes itself."""
    questions: int
    """Questions with a graded attempt."""
    attempts: Attempts
    """Numbers of graded attempts at one question."""
    faults: int
    """Attempts that infrastructure ended; they are in no metric."""
    accuracy: Share | None = metric("accuracy")
    exact_match: Share | None = metric("exact_match")
    numeric_correctness: Share | None = metric("numeric_correctness")
    program_validity: Share | None = metric("program_validity")
    program_accuracy: Share | None = metric("program_accuracy")
    format_compliance: Share | None = metric("format_compliance")
    pass_at_k: dict[str, Share]
    """Chance that at least one of k attempts at a question is right, by k."""
    pass_hat_k: dict[str, Share]
    """Chance that all of k attempts at a question are right, by k."""
    failure_reasons: Counts
    """Number of attempts that are not right, by reason."""
    definitions: Text
    """Meaning of each metric."""


class SampleReportFile(MetricsFile):
    """`report.json` of `finqa sample`: counts of the candidates, and the metrics of an evaluation over them."""

    schema_version: Literal[1] = ABSENT
    measures: dict[str, Any] = ABSENT
    asked: int
    """Questions of the split."""
    candidates_per_question: int
    """Wanted candidates per question."""
    candidates: int
    """Graded attempts."""
    parse_rate: float | None
    """Share of candidates in the requested format; null if no format is requested."""
    parse_rate_wanted: float
    """Share that a policy should have before reinforcement learning."""
    parse_rate_reached: bool | None
    """Whether `parse_rate` is at least `parse_rate_wanted`."""
    questions_all_right: int
    """Questions whose candidates are all right."""
    questions_none_right: int
    """Questions without a right candidate."""
    questions_with_spread: int
    """Questions whose candidates have different rewards, so that pairs can be made of them."""
    distinct_share: float | None
    """Distinct texts divided by candidates."""
    reward_mean: float | None
    """Mean total reward."""
    reward_of_best_mean: float | None
    """Mean over the questions of the best candidate's reward."""
    sampled_tokens: int | None
    """Sampled tokens of all attempts; null if they are unknown."""
    token_ids: bool
    """All candidates have their token ids."""


class Histogram(Written):
    """A histogram with bins of equal width."""

    edges: list[float]
    """Edges of the bins, one more than bins."""
    counts: list[int]
    """Number of pairs in each bin."""


class Margins(Written):
    """Differences of the rewards of the pairs."""

    smallest: float
    """Smallest difference."""
    mean: float
    """Mean."""
    median: float
    """Median."""
    largest: float
    """Largest difference."""
    histogram: Histogram
    """Histogram."""


class SideShares(Written):
    """Shares of the attempts on one side of the pairs."""

    right: float
    """Share of right attempts."""
    well_formed: float | None
    """Share of attempts in the requested format; null if no format is requested."""
    reward_mean: float
    """Mean total reward."""


class PrefsReportFile(Written):
    """`report.json` of `finqa prefs`."""

    also = (Tally,)

    data: DataInfo | dict[str, Any]
    """Data set of the attempts; an empty object if no run records it."""
    rules: PairRules
    """Rules by which the pairs were made."""
    pairs: int
    """Number of pairs."""
    train: int
    """Pairs for training."""
    held_out: int
    """Pairs for evaluation."""
    companies: int
    """Number of clusters, such as companies."""
    held_out_companies: int
    """Number of clusters whose pairs are held out."""
    fewer_than_robust: bool
    """There are fewer than 10,000 pairs."""
    margin: Margins
    """Differences of the rewards, chosen minus rejected."""
    chosen: SideShares
    """The preferred attempts."""
    rejected: SideShares
    """The other attempts."""
    token_ids: bool
    """All attempts have their token ids."""


class ComparedMethod(Written):
    """One method or policy of a comparison."""

    label: str
    """Name."""
    runs: list[str]
    """Folders of its evaluations."""
    accuracy: float
    """Accuracy over the questions that all its runs answered."""
    interval: tuple[float, float]
    """Interval of the accuracy, clustered by company and by run."""
    questions: int
    """Number of these questions."""
    companies: int
    """Number of their clusters."""
    seeds_deviation: float | None
    """Standard deviation of the accuracy between runs; null for one run."""
    failure_reasons: Counts
    """Number of attempts that are not right, by reason."""


class ComparedPair(Written):
    """Two methods of a comparison: first minus second."""

    also = (PairedDifference,)

    first: str
    """Label of the first."""
    second: str
    """Label of the second."""
    about: Literal["methods", "policies", "method and policy"]
    """What the difference is about: methods if both have several runs, else the policies of single runs."""
    standard_error: float | None
    """Standard error of the difference; null with a single company."""
    degrees: float | None
    """Degrees of freedom of the standard error; null with a single company."""
    p_value_holm: float
    """p-value of the clustered t-test, adjusted by Holm over all pairs."""
    mcnemar_holm: float
    """p-value of the exact McNemar test, adjusted in the same way."""
    verdict: str
    """`shown`, `tests disagree` or `not shown`."""
    gained: list[str]
    """Ids of the questions on which the first scored higher."""
    lost: list[str]
    """Ids of the questions on which the first scored lower."""


class ComparedRun(Written):
    """One row of `summary.csv`, and of `runs` in `comparison.json`. Shares have the meaning of `metrics.json`."""

    method: str
    """Label of its method."""
    seed: int
    """Seed of the training, or of the evaluation if the policy was not trained by finqa."""
    run: str
    """Folder of the evaluation."""
    questions: int
    """Questions with a graded attempt."""
    companies: int
    """Number of their clusters."""
    accuracy: float = metric("accuracy")
    accuracy_low: float
    """Lower end of the interval."""
    accuracy_high: float
    """Upper end of the interval."""
    exact_match: float | None = metric("exact_match")
    numeric_correctness: float | None = metric("numeric_correctness")
    program_validity: float | None = metric("program_validity")
    program_accuracy: float | None = metric("program_accuracy")
    format_compliance: float | None = metric("format_compliance")
    pass_at_most_k: float
    """Chance that at least one of `k` attempts is right."""
    pass_hat_most_k: float
    """Chance that all of `k` attempts are right."""
    k: int
    """Smallest number of attempts at a question."""
    faults: int
    """Attempts that infrastructure ended."""
    reward_mean: float
    """Mean total reward."""
    turns_mean: float
    """Mean number of assistant turns."""
    answer_tokens_mean: float | None
    """Mean number of sampled tokens per attempt; null if they are unknown."""
    prompt_tokens: int | None = ABSENT
    """Prompt tokens of the evaluation; null if they are unknown."""
    cached_tokens: int | None = ABSENT
    """Those of them that the server had from earlier requests."""
    sampled_tokens: int | None = ABSENT
    """Sampled tokens of the evaluation; null if they are unknown."""
    cost_usd: float | None = ABSENT
    """Price of these tokens in US dollars; null if it is unknown."""
    request_retries: int | None = ABSENT
    """Requests that were sent again; null if they are unknown."""
    training_iterations: int | None
    """Iterations of the training; null if it is not known."""
    training_sampled_tokens: int | None
    """Tokens that were sampled for the training."""
    training_learner_tokens: int | None
    """Tokens that the learner processed."""
    training_hours: float | None
    """Hours of the training."""


class ComparisonFile(Written):
    """`comparison.json` of `finqa compare`."""

    level: float
    """Confidence level of intervals and tests."""
    baseline: str | None
    """Label of the method that the others are compared with; null: every pair is compared."""
    clustered_by: str
    """Name of a cluster, in the singular."""
    methods: list[ComparedMethod]
    """The methods, in the order in which they were named."""
    runs: list[ComparedRun]
    """All runs, method by method."""
    comparisons: list[ComparedPair]
    """The compared pairs."""
    differing_settings: dict[str, list[Any]]
    """Settings that are not the same in all runs: value of each run, by dotted path."""
    notes: list[str]
    """Notes for the reader, a sentence each."""


class AttemptRow(Written):
    """First columns of the CSV files with one row per attempt. An empty cell is null here."""

    id: str
    """Id of the question."""
    member: int
    """Number of the attempt among those at the question, from 0."""
    company: str
    """Cluster of the question, such as the company."""
    type: str | None
    """Question type."""
    status: str
    """Why the attempt ended; see `status` of a line of `trajectories.jsonl`."""
    reward: float | None
    """Total reward; empty for a fault."""
    turns: int
    """Number of assistant turns."""
    answer: str | None
    """The submitted or stated answer."""
    explanation: str | None
    """The grader's explanation, or the message of a fault."""


Verdict = Literal[0, 1] | None
PARTS = {
    "^part_": {"type": ["number", "null"], "description": "Named part of the reward; empty if it has no such part."}
}


class BreakdownRow(AttemptRow):
    """One row of `breakdown.csv`: an attempt with its verdict by each metric. An empty cell is null here."""

    model_config = ConfigDict(json_schema_extra={"patternProperties": PARTS})

    accuracy: Verdict = metric("accuracy")
    exact_match: Verdict = metric("exact_match")
    numeric_correctness: Verdict = metric("numeric_correctness")
    program_validity: Verdict = metric("program_validity")
    program_accuracy: Verdict = metric("program_accuracy")
    format_compliance: Verdict = metric("format_compliance")
    sampled_tokens: int | None
    """Sampled tokens; empty if they are unknown."""
    seconds: float
    """Wall-clock seconds."""
    failure_reason: str | None
    """Reason why the attempt is not right; empty when it is right."""


class ItemRow(AttemptRow):
    """One row of `items.csv`: an attempt with question, answer and truth. An empty cell is null here."""

    question: str
    """The question as the agent read it."""
    truth: str | None
    """The right answer; empty if it is not recorded."""
    answer_read_as: str | None
    """Numbers that were read from the answer."""
    truth_read_as: str | None
    """Numbers that were read from the truth."""
