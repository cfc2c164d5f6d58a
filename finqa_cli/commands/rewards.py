"""`finqa rewards`: show the specification of a reward, run its tests, and score stored answers with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, next_lines, plural, print_table
from finqa_cli.evaluation import answer_scores as scoring
from finqa_cli.evaluation import reward_tests as workflow
from finqa_cli.evaluation.reward_tests import TOTAL, CaseResult
from finqa_cli.extend import missing_requirements, registry
from finqa_cli.masking import masked
from finqa_cli.settings import ENVIRONMENT, Settings
from finqa_cli.wiring.build import make_verdict
from finqa_cli.wiring.command_settings import with_grader_of_data

app = CommandApp("Show, test and apply rewards.", epilog=EXIT_CODES)

Name = Annotated[
    str | None, typer.Argument(help="Name of a reward, such as weighted.", show_default="of the settings, or weighted")
]
Spec = Annotated[Path | None, typer.Option("--spec", help="A reward_spec.yaml, for rewards that use one.")]
Weights = Annotated[
    str | None,
    typer.Option("--weights", help="Weights of its parts, such as exact=1.0,numerical=0.8,program=0.3,format=-0.2."),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.")]

QUICK_ROWS = 16


@app.command()
@offers(general=("config", "assign", "as_json"))
def show(
    line: CommandLine,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a reward, or `environment` for the environment's own reward.", show_default="list them all"
        ),
    ] = None,
    spec: Spec = None,
    weights: Weights = None,
    out: Out = None,
) -> None:
    """Print a reward's specification as YAML; with --out also write reward_spec.yaml and manifest.json.

    Without NAME, list the rewards. Exit codes: 0 ok, 74 writing failed, 78 the name, the file or an option is wrong.

    Example: finqa rewards show weighted --weights exact=2.0 --out my-reward
    """
    if name is None and not (spec or weights or out):
        listed = _listed()
        emit({"rewards": listed}, as_json=line.as_json, text=lambda: _print_list(listed))
        return
    settings = _settings(line, name, spec, weights)
    found = _specification(settings)
    document: dict[str, Any] = {"reward": settings.reward.name, "specification": found}
    if out is not None:
        stats = {"tests": len(found.get("tests", ()))}
        files = workflow.write_specification(settings.reward.name, found, out, stats)
        document["files"] = [str(file) for file in files]
    emit(document, as_json=line.as_json, text=workflow.as_yaml(found).rstrip("\n"))


@app.command()
@offers(general=("config", "assign", "as_json"))
def test(
    line: CommandLine,
    name: Name = None,
    spec: Spec = None,
    weights: Weights = None,
    out: Out = None,
) -> None:
    """Run a reward's built-in tests and those of its specification; with --out also write unit_tests/*.json.

    Exit codes: 0 all pass, 1 one fails, 74 writing failed, 78 the name, the file or an option is wrong.

    Example: finqa rewards test weighted --spec my-reward/reward_spec.yaml
    """
    settings = _settings(line, name, spec, weights)
    reward = workflow.chosen(settings)
    results = workflow.run_cases(reward, settings.reward.name)
    passed = sum(result.passed for result in results)
    document: dict[str, Any] = {
        "reward": settings.reward.name,
        "passed": passed,
        "failed": len(results) - passed,
        "results": [asdict(result) for result in results],
    }
    if out is not None:
        document["file"] = str(workflow.write_results(reward, results, settings.reward.name, out))
    emit(document, as_json=line.as_json, text=lambda: _print_results(results, passed))
    if passed < len(results):
        raise typer.Exit(1)


@app.command()
@offers(general=("config", "assign", "as_json"))
def score(
    line: CommandLine,
    file: Annotated[
        Path, typer.Argument(help="Rows or candidates (.jsonl, .json, .csv, .parquet), or the folder of a run.")
    ],
    name: Name = None,
    truth: Annotated[
        Path | None, typer.Option("--truth", help="Truths by id, for rows without one: FinQA's file, or rows.")
    ] = None,
    spec: Spec = None,
    weights: Weights = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for scores.jsonl.", show_default="beside FILE")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing scores.jsonl.")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip malformed rows instead of failing.")] = False,
    quick_test: Annotated[
        bool, typer.Option("--quick-test", help=f"Score the first {QUICK_ROWS} rows, as a quick test.")
    ] = False,
) -> None:
    """Score answers in a file and write scores.jsonl.

    A row contains a solution (solution, text or prediction; or candidates with one text each) and a truth (truth,
    target_answer, ground_truth or target_json); program, table, question and extra_info where they are known. Of a run
    the last answer of every graded attempt is scored, against the snapshot that it was played on.

    Exit codes: 0 ok, 1 the reward itself failed, 65 a row is malformed or lacks its truth, 74 writing failed,
    78 the name, the file or an option is wrong, or the reward wants JSON and the run gave plain answers.

    Example: finqa rewards score candidates.jsonl weighted --spec my-reward/reward_spec.yaml
    """
    settings = _settings(line, name, spec, weights)
    folder = out or (file if file.is_dir() else file.parent)
    scores = scoring.score(
        workflow.chosen(settings),
        file,
        settings,
        truth=truth,
        out=folder,
        overwrite=overwrite,
        skip_bad=skip_bad,
        most=QUICK_ROWS if quick_test else None,
    )
    document = {"reward": settings.reward.name, **scoring.document(scores)}
    emit(document, as_json=line.as_json, text=_scores_text(scores, settings.reward.name))


def _settings(line: CommandLine, name: str | None, spec: Path | None, weights: str | None) -> Settings:
    """Return the settings with the reward of the argument. Its options in the settings apply if they name it, too."""
    chosen = workflow.name_of(line.load(quiet=True).settings, name)
    given = {"reward.name": chosen, "reward.options.spec": spec and str(spec), "reward.options.weights": weights}
    return with_grader_of_data(line.load(given, quiet=True)).settings


def _specification(settings: Settings) -> dict[str, Any]:
    """Return the specification of the reward. That of the environment's own verdict includes environment options."""
    if settings.reward.name != ENVIRONMENT or settings.reward.options:
        return workflow.specification(workflow.chosen(settings), settings)
    choice, verdict = settings.environment, make_verdict(settings)
    config = registry().config(registry().find("environment", choice.name), choice.options)
    rules: dict[str, Any] = masked(config.model_dump(mode="json")) if config is not None else {}
    return {"environment": choice.name, **rules, **(verdict.spec() or {} if verdict is not None else {})}


def _listed() -> list[dict[str, str]]:
    own = {"name": ENVIRONMENT, "status": "ready", "summary": "The environment's own verdict (default)"}
    found = [
        {
            "name": component.name,
            "status": f"needs {', '.join(missing)}" if (missing := missing_requirements(component)) else "ready",
            "summary": component.summary,
        }
        for component in registry().components("reward")
    ]
    return [own, *found]


def _print_list(listed: Sequence[dict[str, str]]) -> None:
    print_table(("reward", "status", "summary"), [list(one.values()) for one in listed])
    print(next_lines("finqa rewards show weighted", "finqa train --reward NAME"))


def _print_results(results: Sequence[CaseResult], passed: int) -> None:
    rows = [
        [
            "ok" if result.passed else "FAILED",
            result.name,
            result.error or _parts({part: result.actual.get(part) for part in result.expected}),
            "" if result.passed else _parts(result.expected),
            result.explanation,
        ]
        for result in results
    ]
    print_table(("", "test", "reward", "expected", "why"), rows)
    print(f"{passed} of {plural(len(results), 'test')} passed.")


def _parts(values: dict[str, float | None] | Any) -> str:
    """Return the total, then the parts that are not 0, as one line."""
    shown = {TOTAL: values.get(TOTAL), **{part: value for part, value in values.items() if value != 0}}
    return " ".join(
        f"{part}={'missing' if value is None else f'{value:g}'}" for part, value in shown.items() if part in values
    )


def _scores_text(scores: scoring.Scores, name: str) -> str:
    of_rows = f" of {plural(scores.rows, 'row')}" if scores.rows != scores.solutions else ""
    parse = [f"parse rate {100 * scores.parse_rate:.1f} %"] if scores.parse_rate is not None else []
    parts = ", ".join(f"{part} {value:.3f}" for part, value in scores.components.items())
    return "\n".join(
        [
            f"{plural(scores.solutions, 'answer')}{of_rows} scored by {name}.",
            *parse,
            f"reward mean {scores.mean:.3f}, min {scores.least:.3f}, max {scores.most:.3f}",
            *([f"parts, mean: {parts}"] if parts else []),
            *(f"left out: {problem}" for problem in scores.skipped[:20]),
            *([f"... and {len(scores.skipped) - 20} more"] if len(scores.skipped) > 20 else []),
            f"Scores: {scores.path}",
        ]
    )
