"""`finqa plan`: what an evaluation can show, before it is run."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plain_table, plural
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

_EXAMPLE = "Example: finqa plan --questions 290 --difference 0.03."


def _evaluation(*flags: str, help: str, **details: Any) -> Any:
    return typer.Option(*flags, help=help, **details)


def _share(flag: str, default: str, help: str) -> Any:
    return _evaluation(flag, help=help, show_default=default, min=0.0, max=1.0)


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


@app.command(epilog=f"{_EXAMPLE} {EXIT_CODES}")
@offers(general=("as_json",))
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
) -> None:
    """Calculate what an evaluation can show: the smallest difference in accuracy, or what it takes to show a given one.

    Two policies answer the same questions; a claim about two methods needs several runs (seeds) of each. Formulas:
    Miller, arXiv 2411.00640, section 5; Kish 1965; Bloom 1995.

    GPUs and their memory are planned by `finqa doctor` with the flags of the training; `finqa train --dry-run` measures
    its rollouts.
    """
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
    needed = f"To show {wanted} between two policies takes "
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
    return [f"{needed}{more}; or {repeated}. Comparing two methods takes {seeds}."]
