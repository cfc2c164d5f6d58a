"""`finqa score`: the figures that a published evaluation script computes for a file of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plain_table, plural
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.evaluation.official_scores import ENVIRONMENTS, METRICS, OfficialScores, score_file
from finqa_cli.evaluation.planned_evaluation import GRADER
from finqa_cli.extend import registry
from finqa_cli.grading import Profile, profile_of
from finqa_cli.runs.durable_files import write_csv
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.wiring.build import make_judge, open_environment

app = CommandApp()

SHOWN = 3


@app.command(epilog=EXIT_CODES)
@offers(GRADER, general=("config", "assign", "as_json"))
def main(
    line: CommandLine,
    predictions: Annotated[Path, typer.Argument(help="Predictions in the format of the metric's official script.")],
    metric: Annotated[str, typer.Option("--metric", help=f"{', '.join(METRICS)}.")],
    truth: Annotated[Path, typer.Option("--truth", help="The data set: its file, or for openenv its folder.")],
    rows: Annotated[
        Path | None,
        typer.Option("--rows", help="CSV file to write, with the figures and the reason of each prediction."),
    ] = None,
) -> None:
    """Score a file of predictions as the data set's own script does, with 95 % intervals and reasons.

    finqa: [{"id", "predicted": [token, ...]}]; execution and program accuracy, of the predictions that there are.
    convfinqa: the same, the id of a turn being DIALOGUE_0, DIALOGUE_1, and so on.
    tatqa: {"UID": [answer, scale]}; exact match, F1 and scale score, of all questions.
    openenv: {"ID": answer} or rows with id and answer; accuracy by the rules of its environment, of all questions. Its
    answers can be graded by another --grader; for judge see --grader in finqa eval.

    Example: finqa score predictions.json --metric tatqa --truth tatqa_dataset_dev.json
    """
    if metric not in METRICS:
        raise ConfigError(f"There is no metric {metric!r}.", remedy=f"--metric with one of: {', '.join(METRICS)}")
    environment, judge = None, None
    grader: Profile = "openenv"
    if name := ENVIRONMENTS.get(metric):
        if GRADER in line.flags:
            raise ConfigError(f"Metric {metric} has rules of its own.", remedy="leave --grader out")
        given = {"environment.name": name, "data.path": str(truth)}
        try:
            environment = open_environment(line.load(given, quiet=True).settings, NullReporter())
        except DataError as error:  # its remedy names --data, the option of other commands
            raise DataError(error.message, remedy=error.remedy.replace("--data takes", "--truth takes")) from error
    else:
        settings = line.load(quiet=True).settings
        judge = make_judge(settings)
        chosen = settings.environment
        registry().config(registry().find("environment", chosen.name), chosen.options)  # refuses a grader that is none
        grader = profile_of(chosen.options.get("grader", "openenv"))  # the default of the metric, not of an environment
    found = score_file(metric, predictions, truth, environment, grader=grader, judge=judge)
    if rows is not None:
        write_csv(rows, [_record(found, number) for number in range(len(found.scored.rows))])
    emit(_document(found, rows), as_json=line.as_json, text=_text(found, rows))


def _record(found: OfficialScores, number: int) -> dict[str, Any]:
    row = found.scored.rows[number]
    return {"id": row.id, "cluster": row.cluster, **row.figures, "reason": row.reason}


def _document(found: OfficialScores, rows: Path | None) -> dict[str, Any]:
    scored = found.scored
    return {
        "metric": found.metric,
        "rows": len(scored.rows),
        "missing": scored.missing,
        "unknown": scored.unknown,
        "figures": {
            name: {"value": each.mean, "low": each.low, "high": each.high, "clusters": each.clusters}
            for name, each in found.figures.items()
        },
        "file": str(rows) if rows else None,
    }


def _text(found: OfficialScores, rows: Path | None) -> str:
    scored = found.scored
    table = plain_table(
        ("figure", "value", "95 % interval"),
        [
            (name, f"{100 * each.mean:.2f}", f"{100 * each.low:.2f} to {100 * each.high:.2f}")
            for name, each in found.figures.items()
        ],
    )
    wrong = [row for row in scored.rows if row.reason and row.figures.get("accuracy", 0.0) < 1]
    lines = [f"{found.metric}: {plural(len(scored.rows), 'row')}", table]
    if scored.missing:
        lines.append(f"{plural(scored.missing, 'question')} without a prediction.")
    if scored.unknown:
        lines.append(f"{plural(scored.unknown, 'prediction')} without a question in the data, skipped.")
    lines += [f"{row.id}: {row.reason}" for row in wrong[:SHOWN]]
    if rows is not None:
        lines.append(f"Rows: {rows}")
    elif len(wrong) > SHOWN:
        lines.append(f"... and {len(wrong) - SHOWN} more; --rows FILE writes them all")
    return "\n".join(lines)
