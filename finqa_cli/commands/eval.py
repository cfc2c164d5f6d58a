"""`finqa eval TARGET`: accuracy with its confidence interval, also of recorded attempts under other rules."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli import logs
from finqa_cli.commands.shared.command_line import CommandLine, shown_counts
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, next_lines, plain_table, plural
from finqa_cli.commands.shared.perform import perform
from finqa_cli.errors import UsageError
from finqa_cli.evaluation.before_after import format_number, format_share, name_clusters
from finqa_cli.evaluation.evaluate import EvalResult, evaluate
from finqa_cli.evaluation.planned_evaluation import (
    GRADER,
    check_faults,
    plan_evaluation,
    plan_resumption,
    target_settings,
)
from finqa_cli.evaluation.rescore import (
    LIMIT,
    Rescored,
    advise_rules,
    count_graded_otherwise,
    rescoring_settings,
)
from finqa_cli.evaluation.rescore import rescore as grade_again
from finqa_cli.grading import JUDGES, STRICT, versioned
from finqa_cli.rollout.measures import flat
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import is_over, new_run_path, read_run
from finqa_cli.settings.layers import assignments_layer
from finqa_cli.settings.offered import OF_EVAL, QUICK_EVAL
from finqa_cli.statistics import describe_cut_replies
from finqa_cli.types.model_providers import split_target
from finqa_cli.types.token_use import TokenUse
from finqa_cli.wiring.command_settings import RUNS
from finqa_cli.wiring.provider_targets import BASE_URL

app = CommandApp()

_FLAGS = {GRADER: "--grader", "reward.name": "--reward"}
_TAKEN = {"rescore", "as_json", "quiet", "assign", "run.dir", *_FLAGS}
_OF_JUDGE = {LIMIT: "--max-cost"}


@app.command(epilog=f"Example: finqa eval runs/20260101_120000 --split test. {EXIT_CODES}")
@offers(*OF_EVAL)
def main(
    line: CommandLine,
    target: Annotated[
        str | None,
        typer.Argument(
            help="A run, a checkpoint, a model folder or hub id, PROVIDER/MODEL such as openai/gpt-4o, `embedded`, or "
            "`scripted` (the expert)."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The same as the argument.")] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", help="Address of the server, for an OpenAI-compatible one or a provider's."),
    ] = None,
    count: Annotated[int | None, typer.Option("-n", min=1, help="The same as --limit.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            help="Evaluation to resume, with its settings: plays missing attempts and attempts that ended in faults.",
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Start a new run, even if the same command started one in ./runs that did not finish."
        ),
    ] = False,
    rescore: Annotated[
        Path | None,
        typer.Option(
            "--rescore",
            help="Evaluation whose recorded attempts are graded again with --grader or --reward, without playing.",
        ),
    ] = None,
    quick_test: Annotated[bool, typer.Option("--quick-test", help=f"A short run: {shown_counts(QUICK_EVAL)}.")] = False,
) -> None:
    """Play every question of a split and report accuracy with its 95 % confidence interval.

    The interval is clustered by what questions share, such as their company.

    Saves report.json, metrics.json, breakdown.csv, items.csv, samples/, trajectories.jsonl and manifest.json in the run
    folder. With --limit the questions are drawn by eval.seed (0), independently of --seed: every run has the same.

    Where the same command did not end, it continues: attempts that are recorded are not played again.
    """
    if rescore is not None:
        _rescore_run(line, rescore)
        return
    if resume is not None:
        line.check_resumed(resume, command="eval", free=["assign"])
        if is_over(read_run(resume)):
            _say_finished(line, resume)
            return
        plan = plan_resumption(resume, {**line.flags, **line.operational_assignments()})
    else:
        policy = _policy(target, model)
        typed = {**line.flags, **_aliases(line, policy, base_url, count)}
        extra = {**typed, **target_settings(typed, policy), **line.quick(QUICK_EVAL)}
        plan = plan_evaluation(line.load(extra, purpose="play").settings, policy, fresh=fresh)
        if plan.resumes:
            line.note(f"{plan.run} was started by the same command and is resumed; --fresh starts a new run")

    async def play(reporter: Reporter, stopper: Stopper) -> tuple[EvalResult, int]:
        played = await evaluate(
            plan.settings, plan.target, plan.run, resume=plan.resumes, reporter=reporter, stopper=stopper
        )
        return played, await count_graded_otherwise(plan.settings, plan.run, reporter)

    result, otherwise = perform(line, play, remedy=plan.resume_command)
    facts = {**result.report.to_dict(), "graded_otherwise_by_strict": otherwise}
    document = {"target": plan.target, "run": str(plan.run), **facts}
    if not line.as_json:
        emit(document, as_json=False, text=lambda: evaluation_text(result, otherwise))
    check_faults(result, plan.settings)
    if line.as_json:  # after the check, because stdout gets one document: the result or the error
        emit(document, as_json=True, text="")


def _say_finished(line: CommandLine, run: Path) -> None:
    text = f"{run} is already finished: all of its attempts are played.\n{next_lines(f'finqa show {run}')}"
    emit({"run": str(run), **read_document(run / "report.json")}, as_json=line.as_json, text=text)


def _policy(target: str | None, model: str | None) -> str:
    """Return the policy that the argument or `--model` names.

    Raises:
        UsageError: Both name one, or neither does.
    """
    if target is not None and model is not None:
        raise UsageError(f"{target} and --model {model} both name the policy.", remedy="give one of them")
    if target is None and model is None:
        raise UsageError("No policy and no evaluation to resume is given.", remedy="finqa eval embedded")
    return target or model or ""


def _aliases(line: CommandLine, target: str, base_url: str | None, count: int | None) -> dict[str, Any]:
    """Return the settings of `--base-url` and `-n`.

    Raises:
        UsageError: `--limit` is given too.
    """
    settings: dict[str, Any] = {}
    if count is not None:
        if "eval.limit" in line.flags:
            raise UsageError("-n and --limit both set the number of questions.", remedy="give one of them")
        settings["eval.limit"] = count
    if base_url is not None:
        settings[BASE_URL] = base_url
        if "engine.name" not in line.flags and split_target(target) is None:
            settings["engine.name"] = "openai"
    return settings


def evaluation_text(result: EvalResult, otherwise: int = 0) -> str:
    """Return the accuracy with its interval, then the breakdown by question type.

    Args:
        result: The evaluation.
        otherwise: Number of attempts on which the newest `strict` disagrees.
    """
    report = result.report.to_dict()
    low, high = report["accuracy_interval"]
    asked = f"{result.target} on {result.data.name}/{result.split} ({result.rules})"
    if report["faults"] == report["episodes"]:  # nothing was graded, so an accuracy would not describe the policy
        return f"{asked}: no accuracy, because none of {plural(report['episodes'], 'episode')} could be graded"
    head = f"{asked}: accuracy {report['accuracy']:.3f}, 95 % interval {low:.3f} to {high:.3f} ({_asked(report)})"
    kinds, replies = report["by_kind"], report["cut_replies"]
    rows = [
        [kind, facts["episodes"], facts["accuracy"], *([replies.get(kind, 0)] if replies else [])]
        for kind, facts in kinds.items()
    ]
    headers = ["question type", "episodes", "accuracy", *(["with a cut reply"] if replies else [])]
    played = {kind: facts["episodes"] for kind, facts in kinds.items()}
    cut = describe_cut_replies(replies, played, result.max_gen_tokens)
    statuses = ", ".join(f"{count} {status}" for status, count in report["statuses"].items() if count)
    parts = ", ".join(f"{name} {value:.3f}" for name, value in report["components"].items() if name != "correct")
    errors, quoted = format_share(report["sql_error_rate"]), format_share(report["quoted_years"])
    queries = f"{errors} of SQL queries failed; {quoted} quoted their years; "
    lines = [
        head,
        *([f"reward {report['reward_mean']:.3f}; parts: {parts}"] if parts else []),
        f"{report['turns_mean']:.1f} turns; {queries if report['sql_queries'] else ''}{statuses}",
        *([cut] if cut else []),
        *([_differs(result.run, otherwise)] if otherwise else []),
        *([_used(report, result.turn_seconds)] if report["usage"] else []),
        *(["", plain_table(headers, rows)] if any(kinds) else []),
        *(["", *measures] if (measures := list_measures(report["measures"])) else []),
        "",
        f"Report: {result.run / 'report.json'} and metrics.json; a row per attempt: {result.run / 'breakdown.csv'}",
        next_lines(f"finqa report {result.run}", f"finqa view {result.run}", f"finqa show {result.run}"),
    ]
    return "\n".join(lines)


def _used(report: Mapping[str, Any], seconds: float | None) -> str:
    """Return tokens, cost and speed in one line; nothing is said about what is unknown."""
    use = TokenUse.from_dict(report["usage"])
    assert use is not None
    return use.text() + (f", {seconds:.1f} s a turn" if seconds is not None else "")


def _differs(run: Path, otherwise: int) -> str:
    return (
        f"{STRICT} grades {plural(otherwise, 'attempt')} otherwise: "
        f"finqa eval --rescore {shlex.quote(str(run))} --grader strict"
    )


def _asked(report: Mapping[str, Any]) -> str:
    """Return the numbers behind a score: questions, episodes where they differ from questions, and clusters."""
    episodes, questions = report["episodes"], report["questions"]
    parts = [plural(questions, "question"), *([plural(episodes, "episode")] if episodes != questions else [])]
    return ", ".join([*parts, *([name_clusters(report)] if report["clustered_by"] != "question" else [])])


def list_measures(measures: Mapping[str, Any]) -> list[str]:
    """Return the environment's own figures, a line each."""
    return [f"  {name}: {format_number(value)}" for name, value in flat(measures).items()]


def _rescore_run(line: CommandLine, source: Path) -> None:
    """Grade the attempts again, and print both verdicts.

    Raises:
        UsageError: A parameter has no effect on recorded attempts, or no parameter changes the rules.
    """
    judged = versioned(str(line.flags.get(GRADER, ""))) in JUDGES
    flags = {**_FLAGS, **_OF_JUDGE} if judged else _FLAGS
    if refused := set(line.typed) - _TAKEN - set(flags):
        raise UsageError(
            f"Nothing is played, so {line.written(refused)} would have no effect.",
            remedy=advise_rules(source),
        )
    logs.configure()
    rules = {path: value for path, value in line.flags.items() if path in flags}
    assigned = {path: value.raw for path, value in assignments_layer(line.assignments).items()}
    judge = _judge_of_layers(line) if judged else {}
    settings = rescoring_settings(source, {**judge, **rules, **assigned})
    run = line.flags.get("run.dir") or new_run_path(RUNS, "rescore_")
    given = [word for path, value in rules.items() for word in (flags[path], str(value))]
    given += [word for assignment in line.assignments for word in ("--set", assignment)]
    result = perform(
        line,
        lambda reporter, stopper: grade_again(settings, source, Path(run), reporter=reporter, stopper=stopper),
        remedy=f"finqa eval --rescore {shlex.quote(str(source))} {shlex.join(given)}",
    )
    emit(result.document(), as_json=line.as_json, text=lambda: "\n".join(_rescored_lines(result)))


def _judge_of_layers(line: CommandLine) -> dict[str, Any]:
    """Return the judge that files and variables set, where its key may be; the flags are added to it."""
    judge = line.load(quiet=True).settings.grader
    return {"grader.name": judge.name, **{f"grader.options.{key}": value for key, value in judge.options.items()}}


def _rescored_lines(result: Rescored) -> Iterator[str]:
    before, after = result.before, result.after
    graded = after.episodes - after.faults
    faults = f"; {plural(after.faults, 'fault')} not graded" if after.faults else ""
    yield f"{result.source} graded again: {plural(graded, 'attempt')}{faults}"
    for name, report in (("before", before), ("now", after)):
        low, high = report.accuracy_interval
        yield (
            f"  {name:<7} accuracy {report.accuracy:.3f}, 95 % interval {low:.3f} to {high:.3f}; "
            f"reward {report.reward_mean:.3f}"
        )
    if (found := result.accuracy) is not None and result.reward is not None:
        yield (
            f"  change  accuracy {found.difference:+.3f}, 95 % interval {found.low:+.3f} to {found.high:+.3f} "
            f"({plural(found.questions, 'question')}); reward {result.reward[0]:+.3f}, "
            f"{result.reward[1]:+.3f} to {result.reward[2]:+.3f}"
        )
    yield f"Now right: {plural(result.now_right, 'attempt')}; now wrong: {result.now_wrong}."
    yield f"Next: finqa report {result.source} {result.run}   (both verdicts, question by question)"
