"""`finqa eval --rescore RUN`: the recorded attempts of an evaluation under other rules."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from finqa_cli import logs
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.commands.shared.perform import perform
from finqa_cli.errors import UsageError
from finqa_cli.evaluation.rescore import GRADER, Rescored, advise_rules, rescore, rescoring_settings
from finqa_cli.runs.run_folder import new_run_path
from finqa_cli.settings.layers import assignments_layer
from finqa_cli.wiring.command_settings import RUNS

_FLAGS = {GRADER: "--grader", "reward.name": "--reward"}
_TAKEN = {"rescore", "as_json", "quiet", "assign", "run.dir", *_FLAGS}


def rescore_run(line: CommandLine, source: Path) -> None:
    """Grade the attempts again, and print both verdicts.

    Raises:
        UsageError: A parameter is given that has no effect on recorded attempts, or none that changes the rules.
    """
    if refused := set(line.typed) - _TAKEN:
        raise UsageError(
            f"Nothing is played, so {line.written(refused)} would have no effect.",
            remedy=advise_rules(source),
        )
    logs.configure()
    rules = {path: value for path, value in line.flags.items() if path in _FLAGS}
    assigned = {path: value.raw for path, value in assignments_layer(line.assignments).items()}
    settings = rescoring_settings(source, {**rules, **assigned})
    run = line.flags.get("run.dir") or new_run_path(RUNS, "rescore_")
    given = [word for path, value in rules.items() for word in (_FLAGS[path], str(value))]
    given += [word for assignment in line.assignments for word in ("--set", assignment)]
    result = perform(
        line,
        lambda reporter, stopper: rescore(settings, source, Path(run), reporter=reporter, stopper=stopper),
        remedy=f"finqa eval --rescore {shlex.quote(str(source))} {shlex.join(given)}",
    )
    emit(result.document(), as_json=line.as_json, text=lambda: "\n".join(_lines(result)))


def _lines(result: Rescored) -> Iterator[str]:
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
