"""`finqa plan`: what an evaluation can show, and what a run with many sandboxes takes, before it is run."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared import sandbox_plan
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plain_table, plural
from finqa_cli.errors import UsageError
from finqa_cli.evaluation.power_plan import RUN_DEVIATION, Assumptions, Plan, plan, with_attempts, with_seeds

app = CommandApp()

_SHOWN_ATTEMPTS = (1, 2, 4, 8, 16, 32)

_SHOWN_SEEDS = (1, 2, 3, 5, 10)

_WORDS = {
    "accuracy": "accuracy of both policies",
    "paired": "correlation of two policies at one question",
    "repeated": "correlation of two attempts of one policy at one question",
    "company": "correlation of two questions about one company",
    "deviation": "standard deviation of the accuracy of a method's runs",
}

_EXAMPLES = "Examples: finqa plan --questions 290 --difference 0.03; finqa plan --sandboxes 500 --hours 8."


def _evaluation(*flags: str, help: str, **details: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel="Evaluations", **details)


def _share(flag: str, default: str, help: str) -> Any:
    return _evaluation(flag, help=help, show_default=default, min=0.0, max=1.0)


def _run(flag: str, help: str, **details: Any) -> Any:
    return typer.Option(flag, help=help, rich_help_panel="Runs with many sandboxes", **details)


Questions = Annotated[int | None, _evaluation("--questions", "-n", help="Number of questions.", min=2)]
Companies = Annotated[
    int | None,
    _evaluation("--companies", help="Number of companies of the questions.", min=2, show_default="one per question"),
]
Attempts = Annotated[
    int | None, _evaluation("--attempts", "-k", help="Attempts per question and policy.", min=1, show_default="1")
]
Difference = Annotated[float | None, _evaluation("--difference", help="Difference to show, such as 0.03.")]
Level = Annotated[float, _evaluation("--level", help="Confidence level of the two-sided test.")]
Power = Annotated[float, _evaluation("--power", help="Power: chance of showing an existing difference.")]
Comparisons = Annotated[int, _evaluation("--comparisons", help="Pairs that Holm corrects for.", min=1)]
Accuracy = Annotated[float | None, _share("--accuracy", "0.5", "Accuracy of both policies.")]
Paired = Annotated[
    float | None,
    _share("--paired-correlation", "0.5", "Correlation of two policies at one question; 0: unpaired."),
]
Repeated = Annotated[
    float | None, _share("--attempt-correlation", "0.6", "Correlation of two attempts of one policy; 1: greedy.")
]
Company = Annotated[
    float | None, _share("--company-correlation", "0.1", "Correlation of two questions about one company.")
]
Deviation = Annotated[
    float | None,
    _evaluation(
        "--run-deviation",
        help="Standard deviation of the accuracies of a method's runs, by seed.",
        show_default=f"{RUN_DEVIATION:g}",
        min=0.0,
        max=0.5,
    ),
]
Runs = Annotated[
    list[str] | None,
    _evaluation(
        "--from",
        metavar="RUN",
        help="Run from which sizes and variation are estimated; repeat for two. Runs with one label (LABEL=RUN) are "
        "seeds of a method and give its --run-deviation.",
    ),
]
Hours = Annotated[float | None, _run("--hours", "Hours of the run, starts of sandboxes included.")]
Workers = Annotated[
    int,
    _run(
        "--workers",
        "Rollout workers in addition to the controller (cluster.rollout_workers); 0: one process.",
        min=0,
        max=1000,
    ),
]
Accounts = Annotated[
    int, _run("--accounts", "Accounts of the sandbox provider; more than 1: not built yet.", min=1, max=1000)
]
Fresh = Annotated[bool, _run("--fresh", "Each episode needs a new sandbox, as in environments that execute code.")]
Turns = Annotated[float, _run("--turns", "Mean turns of an episode.")]
Tokens = Annotated[float, _run("--reply-tokens", "Median tokens of a turn.")]
Step = Annotated[float, _run("--step-ms", "Time of an engine replica for a token of one request, in ms.")]
Request = Annotated[float, _run("--request-ms", "Time that each further concurrent request adds to it, in ms.")]
TurnCpu = Annotated[float, _run("--turn-cpu-ms", "CPU time of this machine for a turn, in ms.")]


@app.command(epilog=f"{_EXAMPLES} {EXIT_CODES}")
@offers(
    *("pool.sandboxes", "pool.sessions_per_sandbox", "pool.max_concurrent_play", "pool.max_concurrent_create"),
    *("sandbox", "train.group_size", "generation.engine_replicas", "model.name", "model.tensor_parallel_size"),
    general=("config", "assign", "as_json"),
)
def main(
    line: CommandLine,
    questions: Questions = None,
    companies: Companies = None,
    attempts: Attempts = None,
    difference: Difference = None,
    level: Level = 0.95,
    power: Power = 0.8,
    comparisons: Comparisons = 1,
    accuracy: Accuracy = None,
    paired_correlation: Paired = None,
    attempt_correlation: Repeated = None,
    company_correlation: Company = None,
    run_deviation: Deviation = None,
    runs: Runs = None,
    hours: Hours = None,
    workers: Workers = 0,
    accounts: Accounts = 1,
    fresh: Fresh = False,
    turns: Turns = 4.5,
    reply_tokens: Tokens = 70.0,
    step_ms: Step = 20.0,
    request_ms: Request = 0.06,
    turn_cpu_ms: TurnCpu = 3.0,
) -> None:
    """Calculate what an evaluation can show, or with --hours what a run with many sandboxes takes and gives.

    Evaluations: the smallest difference in accuracy that is shown, or what it takes to show a given one. Two policies
    answer the same questions; a claim about two methods needs several runs (seeds) of each. Formulas: Miller, arXiv
    2411.00640, section 5; Kish 1965; Bloom 1995.

    Runs: --sandboxes and --hours are simulated with the settings of finqa train: time to fill, what limits, episodes,
    cost, and what to change. Nothing is started.

    GPUs and their memory are planned by `finqa doctor` with the flags of the training; `finqa train --dry-run` measures
    its rollouts.
    """
    _check_kind(line, hours)
    if hours is not None:
        load = sandbox_plan.Load(hours, workers, accounts, fresh, turns, reply_tokens, step_ms, request_ms, turn_cpu_ms)
        planned = sandbox_plan.plan_sandboxes(line, load)
        emit(sandbox_plan.document(planned), as_json=line.as_json, text=lambda: sandbox_plan.text(planned))
        return
    result = plan(
        questions=questions,
        companies=companies,
        attempts=attempts,
        wanted=difference,
        level=level,
        power=power,
        comparisons=comparisons,
        assumptions=Assumptions(
            accuracy=accuracy,
            paired=paired_correlation,
            repeated=attempt_correlation,
            company=company_correlation,
            deviation=run_deviation,
        ),
        runs=runs or [],
    )
    emit(_document(result), as_json=line.as_json, text=lambda: _text(result))


_OF_EVALUATIONS = {
    *("questions", "companies", "attempts", "difference", "level", "power", "comparisons", "accuracy", "runs"),
    *("paired_correlation", "attempt_correlation", "company_correlation", "run_deviation"),
}


def _check_kind(line: CommandLine, hours: float | None) -> None:
    """Raise a UsageError for options of the other kind of plan; --hours makes it a plan of sandboxes."""
    typed = set(line.typed) - {"as_json", "hours"}
    if hours is None and (without_effect := typed - _OF_EVALUATIONS):
        raise UsageError(
            f"{line.written(without_effect)} would have no effect on a plan of an evaluation.",
            remedy="--hours H, which makes it a plan of sandboxes",
        )
    if hours is not None and (without_effect := typed & _OF_EVALUATIONS):
        raise UsageError(
            f"{line.written(without_effect)} would have no effect on a plan of sandboxes.",
            remedy=f"leave {line.written(without_effect)} out",
        )


def _document(result: Plan) -> dict[str, Any]:
    return {
        "design": asdict(result.design),
        "variation": asdict(result.variation),
        "assumptions": {name: {"value": value, "origin": origin} for name, (value, origin) in result.used.items()},
        "smallest_difference": result.smallest,
        "by_attempts": {str(number): value for number, value in with_attempts(result, _SHOWN_ATTEMPTS)},
        "by_seeds": {
            str(number): value if math.isfinite(value) else None for number, value in with_seeds(result, _SHOWN_SEEDS)
        },
        "wanted_difference": result.wanted,
        "questions_needed": result.questions,
        "attempts_needed": result.attempts,
        "seeds_needed": result.seeds,
    }


def _text(result: Plan) -> str:
    design = result.design
    pairs = "" if design.comparisons == 1 else f", as one of {design.comparisons} comparisons"
    lines = [
        f"{design.questions} questions about {design.companies:.0f} companies, "
        f"{plural(design.attempts, 'attempt')} each: a difference of {100 * result.smallest:.1f} points is shown "
        f"with {100 * design.power:g} % power at level {100 * design.level:g} %{pairs}, between two policies.",
        *_needed(result),
        "",
        plain_table(
            ["attempts", "smallest difference, points"],
            [[number, f"{100 * value:.1f}"] for number, value in with_attempts(result, _SHOWN_ATTEMPTS)],
        ),
        "",
        plain_table(
            ["seeds per method", "smallest difference of methods, points"],
            [
                [
                    number,
                    f"{100 * value:.1f}" if math.isfinite(value) else "none: one run is no evidence about methods",
                ]
                for number, value in with_seeds(result, _SHOWN_SEEDS)
            ],
        ),
        "",
        *(f"{_WORDS[name]}: {value:.3f} ({origin})" for name, (value, origin) in result.used.items()),
        f"variance of the difference: {result.variation.between:.4f} between questions, "
        f"{result.variation.within:.4f} between attempts",
    ]
    return "\n".join(lines)


def _needed(result: Plan) -> list[str]:
    if result.wanted is None:
        return []
    wanted, design = f"{100 * result.wanted:g} points", result.design
    needed = f"To show {wanted} of two policies it takes "
    per_company = design.questions / design.companies
    more = (
        f"{result.questions} questions, {per_company:.1f} per company, {plural(design.attempts, 'attempt')} each"
        if result.questions
        else "more questions than exist"
    )
    repeated = (
        f"{plural(result.attempts, 'attempt')} at each of these {design.questions}"
        if result.attempts
        else "no number of attempts at these questions is sufficient"
    )
    seeds = (
        f"{result.seeds} seeds of each at these questions"
        if result.seeds
        else "more questions: no number of seeds is sufficient at these questions"
    )
    return [f"{needed}{more}; or {repeated}. Of two methods it takes {seeds}."]
