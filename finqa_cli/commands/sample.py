"""`finqa sample TARGET`: several candidates per question, to be made into preference pairs or demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.commands.shared.perform import perform
from finqa_cli.errors import UsageError
from finqa_cli.evaluation.candidates import FLAGS, QUICK, SampleResult, check_candidates, sample, sampling_settings
from finqa_cli.evaluation.planned_evaluation import target_settings
from finqa_cli.settings.offered import OF_PLAY, QUICK_SAMPLE
from finqa_cli.wiring.command_settings import played_prefix, run_path, stored_parameter
from finqa_cli.wiring.provider_targets import address_settings

app = CommandApp()


@app.command(epilog=f"Example: finqa sample embedded --num-candidates 8 --limit 100. {EXIT_CODES}")
@offers(*OF_PLAY)
def main(
    line: CommandLine,
    target: Annotated[
        str | None,
        typer.Argument(help="A run, a checkpoint, a model folder or hub id, `embedded`, or an engine by name."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", help="Interrupted run to resume: plays missing attempts and attempts that ended in faults."
        ),
    ] = None,
    candidates: Annotated[int, typer.Option("--num-candidates", "-k", min=1, help="Candidates per question.")] = 4,
    temperature: Annotated[float, typer.Option("--temperature", min=0, max=10, help="Sampling temperature.")] = 0.8,
    top_p: Annotated[float, typer.Option("--top-p", min=0.001, max=1, help="Nucleus sampling mass.")] = 0.9,
    split: Annotated[str, typer.Option("--split", help="Split of the questions.", show_default="train")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Number of questions; 0: all.")] = 0,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", help="Address of the server, for an OpenAI-compatible one or a provider's."),
    ] = None,
    quick_test: Annotated[
        bool, typer.Option("--quick-test", help="Four candidates of 16 questions, as a quick test.")
    ] = False,
) -> None:
    """Sample candidates of each question: texts, token ids, log-probabilities and rewards.

    Saves candidates.jsonl, scores.jsonl, trajectories.jsonl, report.json and manifest.json in the run folder. `finqa
    prefs` makes pairs of them, `finqa sft --minimum-reward 1` imitates the right ones.
    """
    if resume is not None:
        line.check_resumed(resume, command="sample")
        settings, policy = line.stored_settings(resume, "play"), str(stored_parameter(resume, "target", "sample"))
        run = resume
    elif target is None:
        raise UsageError("No policy and no run to resume is given.", remedy="finqa sample embedded")
    else:
        _check_assignments(line)
        quick = {name: count for name, count in QUICK.items() if quick_test and name not in line.typed}
        typed = {**line.flags, **address_settings(line.flags, target, base_url)}
        extra = {**typed, **target_settings(typed, target), **line.quick(QUICK_SAMPLE)}
        loaded = line.load(extra, purpose="play").settings
        policy = target
        settings = sampling_settings(
            loaded,
            candidates=quick.get("candidates", candidates),
            temperature=temperature,
            top_p=top_p,
            split=split or loaded.data.train_split,
            limit=quick.get("limit", limit),
        )
        run = run_path(settings, played_prefix("sample", policy, settings))
    result = perform(
        line,
        lambda reporter, stopper: sample(
            settings, policy, run, resume=resume is not None, reporter=reporter, stopper=stopper
        ),
        remedy=f"finqa sample --resume {run}",
    )
    document = {"run": str(run), "seconds": round(result.seconds, 3), **result.report}
    if not line.as_json:
        emit(document, as_json=False, text=lambda: _text(result))
    check_candidates(result, settings)
    if line.as_json:  # after the check, because stdout gets one document: the result or the error
        emit(document, as_json=True, text="")


def _check_assignments(line: CommandLine) -> None:
    for assignment in line.assignments:
        name, _, value = assignment.partition("=")
        if flag := FLAGS.get(name.strip()):
            raise UsageError(
                f"--set {assignment} has no effect here.",
                remedy=f"{flag} {value.strip()} instead of --set {name.strip()}",
            )


def _text(result: SampleResult) -> str:
    report = result.report
    passes = ", ".join(f"pass@{k} {share['value']:.3f}" for k, share in report["pass_at_k"].items())
    rate = report["parse_rate"]
    shares = [f"{100 * rate:.1f} % could be read" if rate is not None else "", passes]
    mixed = report["questions"] - report["questions_all_right"] - report["questions_none_right"]
    spread = f"{report['questions_with_spread']} of {plural(report['questions'], 'question')} have unequal rewards"
    imitable = not report["questions_with_spread"] and report["questions_all_right"]
    following = "sft" if imitable else "prefs"
    return "\n".join(
        [
            f"{report['target']} on {report['data']['name']}/{report['split']}: {report['candidates']} candidates of "
            f"{plural(report['questions'], 'question')} in {result.seconds:.0f} s",
            "; ".join(filter(None, shares)),
            f"{spread}, {mixed} right and wrong candidates, {report['questions_none_right']} no right one",
            "",
            f"Candidates: {result.run / 'candidates.jsonl'}; rewards: {result.run / 'scores.jsonl'}",
            f"Next: finqa {following} {result.run}",
        ]
    )
