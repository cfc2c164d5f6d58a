"""`finqa eval TARGET`: accuracy with its confidence interval, also of recorded attempts under other rules."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from finqa_cli import logs
from finqa_cli.commands.compare import comparison_text
from finqa_cli.commands.shared.command_line import CommandLine, resumable_paths, shown_counts
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, next_lines, plain_table, plural
from finqa_cli.commands.shared.perform import perform
from finqa_cli.errors import UsageError
from finqa_cli.evaluation.before_after import format_number, format_share, name_clusters
from finqa_cli.evaluation.compare.comparison_report import document as comparison_document
from finqa_cli.evaluation.evaluate import EvalResult, evaluate
from finqa_cli.evaluation.planned_evaluation import (
    GRADER,
    PlannedEvaluation,
    check_faults,
    plan_evaluation,
    plan_resumption,
    settings_of_questions,
    target_settings,
    with_recorded_replies,
)
from finqa_cli.evaluation.rescore import (
    LIMIT,
    Rescored,
    advise_rules,
    count_graded_otherwise,
    rescoring_settings,
)
from finqa_cli.evaluation.rescore import rescore as grade_again
from finqa_cli.evaluation.several_models import (
    COMPARISON,
    ModelsResult,
    SeveralModels,
    is_several,
    opened,
    plan_several,
    plan_several_again,
    play_several,
    several_faults,
)
from finqa_cli.grading import JUDGES, STRICT, versioned
from finqa_cli.rollout.measures import flat
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import is_over, new_run_path, read_run
from finqa_cli.runs.run_summary import locate_run
from finqa_cli.settings import Settings
from finqa_cli.settings.layers import assignments_layer
from finqa_cli.settings.offered import OF_EVAL, QUICK_EVAL
from finqa_cli.statistics import REASONS, describe_cut_replies
from finqa_cli.types.token_use import TokenUse
from finqa_cli.wiring.command_settings import RUNS
from finqa_cli.wiring.provider_targets import address_settings

app = CommandApp()

_FLAGS = {GRADER: "--grader", "reward.name": "--reward"}
_TAKEN = {"rescore", "as_json", "quiet", "assign", "run.dir", *_FLAGS}
_OF_JUDGE = {LIMIT: "--max-cost"}


@app.command(epilog=f"Example: finqa eval runs/20260101_120000 --split test. {EXIT_CODES}")
@offers(*OF_EVAL)
def main(
    line: CommandLine,
    target: Annotated[
        list[str] | None,
        typer.Argument(
            help="A run, a checkpoint, a model folder or hub id, PROVIDER/MODEL such as openai/gpt-4o, `embedded`, or "
            "`scripted` (the expert). Several are played on the same questions and compared."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The same as the argument.")] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", help="Address of the server, for an OpenAI-compatible one or a provider's."),
    ] = None,
    count: Annotated[int | None, typer.Option("-n", min=1, help="The same as --limit.")] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Keep replies of a server in ~/.cache/finqa, and do not pay for them again.")
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Evaluation whose questions are asked, on its data."),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only the questions that --from RUN got wrong.")] = False,
    faulted: Annotated[
        bool, typer.Option("--faulted", help="Only the questions of --from RUN with an attempt that ended in a fault.")
    ] = False,
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

    If the same command was interrupted, it resumes and keeps the finished attempts.
    """
    if rescore is not None:
        _rescore_run(line, rescore)
        return
    asked = _questions_of(line, source, failed=failed, faulted=faulted)
    if len(target or ()) > 1 or (resume is not None and is_several(resume)):
        _evaluate_several(line, target or [], resume, model, _Given(asked, base_url, count, cache), fresh=fresh)
        return
    if resume is not None:
        line.check_resumed(resume, command="eval", free=["assign"])
        if is_over(read_run(resume)):
            _say_finished(line, resume)
            return
        plan = plan_resumption(resume, {**line.flags, **line.operational_assignments()})
    else:
        policy = _policy(target, model)
        plan = plan_evaluation(_settings_of(line, policy, _Given(asked, base_url, count, cache)), policy, fresh=fresh)
        if plan.resumes:
            line.note(f"{plan.run} was started by the same command and is resumed; --fresh starts a new run")

    result, otherwise = _play(line, plan)
    facts = {**result.report.to_dict(), "graded_otherwise_by_strict": otherwise}
    document = {"target": plan.target, "run": str(plan.run), **facts}
    if not line.as_json:
        emit(document, as_json=False, text=lambda: evaluation_text(result, otherwise))
    check_faults(result, plan.settings)
    if line.as_json:  # after the check, because stdout gets one document: the result or the error
        emit(document, as_json=True, text="")


class _Given(NamedTuple):
    """What the command line gives beside settings: the questions of another run, `--base-url` and `-n`."""

    questions: Mapping[str, Any]
    base_url: str | None
    limit: int | None
    cache: bool


def _questions_of(line: CommandLine, source: Path | None, *, failed: bool, faulted: bool) -> dict[str, Any]:
    """Return the settings of `--from`; those that the command line gives too are left out.

    Raises:
        UsageError: `--failed` or `--faulted` is given without `--from`, or `--ids` with it.
    """
    if source is None:
        if failed or faulted:
            flag = "--failed" if failed else "--faulted"
            raise UsageError(
                f"{flag} needs the evaluation that it refers to, as --from RUN.", remedy="name that evaluation"
            )
        return {}
    if "eval.ids" in line.flags:
        raise UsageError("--from and --ids both name the questions.", remedy="give one of them")
    assigned = assignments_layer(line.assignments)
    found = settings_of_questions(locate_run(source), failed=failed, faulted=faulted)
    return {path: value for path, value in found.items() if path not in assigned and path not in line.flags}


def _settings_of(line: CommandLine, policy: str, given: _Given) -> Settings:
    typed = {**given.questions, **line.flags, **_aliases(line, policy, given.base_url, given.limit)}
    extra = {**typed, **target_settings(typed, policy), **line.quick(QUICK_EVAL)}
    settings = line.load(extra, purpose="play").settings
    return with_recorded_replies(settings) if given.cache else settings


def _play(line: CommandLine, plan: PlannedEvaluation) -> tuple[EvalResult, int]:
    """Play an evaluation; return its result and the number of attempts on which the newest `strict` disagrees."""

    async def play(reporter: Reporter, stopper: Stopper) -> tuple[EvalResult, int]:
        played = await evaluate(
            plan.settings, plan.target, plan.run, resume=plan.resumes, reporter=reporter, stopper=stopper
        )
        return played, await count_graded_otherwise(plan.settings, plan.run, reporter)

    return perform(line, play, remedy=plan.resume_command)


def _evaluate_several(
    line: CommandLine,
    targets: Sequence[str],
    resume: Path | None,
    model: str | None,
    words: _Given,
    *,
    fresh: bool,
) -> None:
    """Evaluate several policies, and print their comparison.

    Raises:
        ThresholdError: An evaluation is not complete.
    """
    settings: dict[str, Settings] = {}
    given: dict[str, Any] = {}
    if resume is not None:
        if targets or model:
            raise UsageError("--resume plays the recorded policies.", remedy=f"finqa eval --resume {resume}")
        line.check_free(resume, command="eval", free=["assign", *resumable_paths()])
        logs.configure()
        given = {**line.flags, **line.operational_assignments()}
        plan = plan_several_again(resume)
    else:
        settings = {policy: _settings_of(line, policy, words) for policy in targets}
        plan = plan_several(settings, targets, fresh=fresh)
        if model is not None:
            raise UsageError(f"{targets[0]} and --model {model} both name the policy.", remedy="leave --model out")
        if plan.resumes:
            line.note(f"{plan.path} was started by the same command and is resumed; --fresh starts new runs")
    with opened(plan, settings):
        result = play_several(plan, settings, given, lambda each: _play(line, each)[0], line.note)
    compared = result.comparison
    facts = {
        "run": str(result.path),
        "targets": dict(plan.targets),
        "faults": {label: error.message for label, error in result.faults.items()},
        "comparison": None if compared is None else comparison_document(compared),
    }
    if not line.as_json:
        emit(facts, as_json=False, text=lambda: _several_text(plan, result))
    if result.faults:
        raise several_faults(plan, result)
    if line.as_json:
        emit(facts, as_json=True, text="")


def _several_text(plan: SeveralModels, result: ModelsResult) -> str:
    folder = result.path / COMPARISON
    lines = [result.not_compared] if result.comparison is None else [comparison_text(result.comparison, folder)]
    runs = [shlex.quote(str(plan.folder(label))) for label in plan.targets]
    return "\n".join([*lines, next_lines(f"finqa report {' '.join(runs[:2])}", f"finqa view {result.path}")])


def _say_finished(line: CommandLine, run: Path) -> None:
    text = f"{run} is already finished: all of its attempts are played.\n{next_lines(f'finqa show {run}')}"
    emit({"run": str(run), **read_document(run / "report.json")}, as_json=line.as_json, text=text)


def _policy(targets: Sequence[str] | None, model: str | None) -> str:
    """Return the policy that the argument or `--model` names.

    Raises:
        UsageError: Both name one, or neither does.
    """
    target = targets[0] if targets else None
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
    return settings | address_settings(line.flags, target, base_url)


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
    years = f"{quoted} quoted year columns; " if report["quoted_years"] is not None else ""
    queries = f"{errors} of SQL queries failed; {years}"
    lines = [
        head,
        *([f"reward {report['reward_mean']:.3f}; parts: {parts}"] if parts else []),
        f"{report['turns_mean']:.1f} turns; {queries if report['sql_queries'] else ''}{statuses}",
        *([cut] if cut else []),
        *([_differs(result.run, otherwise)] if otherwise else []),
        *([_used(report, result.turn_seconds)] if report["usage"] else []),
        *(["", plain_table(headers, rows)] if any(kinds) else []),
        *(
            ["", plain_table(["why attempts are wrong", "attempts"], reasons)]
            if (reasons := list_reasons(report))
            else []
        ),
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


def list_reasons(report: Mapping[str, Any]) -> list[list[Any]]:
    """Return a row for each reason why attempts are not right."""
    return [[REASONS[reason], count] for reason, count in report["reasons"].items()]


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
