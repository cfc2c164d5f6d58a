"""`finqa show`: one run, or one of its episodes as the transcript that `finqa play` shows."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.recorded.list_runs import WIDEST, document_of, score_text, wrapped
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.episode_transcript import opening_text, truth_lines, turn_text, verdict_text
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import age_text, emit, plural, screen_width, size_text
from finqa_cli.errors import DataError, UsageError, printable
from finqa_cli.extend import registry
from finqa_cli.runs.recorded_episodes import RecordedError, count_errors, find_episode, outcome_of, select_episodes
from finqa_cli.runs.run_nodes import NodeState
from finqa_cli.runs.run_notes import RunNotes, read_notes
from finqa_cli.runs.run_summary import COMPLETED, RUNNING, RunSummary, locate_run, summarize_run
from finqa_cli.runs.trajectory_records import recorded_trajectory
from finqa_cli.settings import is_embedded
from finqa_cli.statistics import MALFORMED, Outcome
from finqa_cli.types import PolicyVersion
from finqa_cli.types.token_use import recorded_use
from finqa_cli.wiring.command_settings import RESUMABLE

app = CommandApp()

_LABEL = 13
_MOST_ERRORS = 5
_PLAIN_FACTS = ("schema_version", "event", "time")


@app.command(epilog=f"Example: finqa show RUN --failed. {EXIT_CODES}")
@offers(general=("as_json",))
def main(
    line: CommandLine,
    run: Annotated[Path, typer.Argument(help="Folder of a run, or its name below ./runs.", show_default=False)],
    episode: Annotated[
        str, typer.Argument(help="Number of an episode, its id, or the beginning of its id.", show_default=False)
    ] = "",
    failed: Annotated[bool, typer.Option("--failed", help="Only episodes that are wrong or ended in a fault.")] = False,
    search: Annotated[
        str, typer.Option("--search", help="Only episodes that contain this text, ignoring case.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Episodes to list; 0: all.")] = 10,
) -> None:
    """Show a run: status, score, what it was made of, its settings other than the defaults, recoveries and losses, the
    errors of episodes that ended in faults, with their counts, and its first episodes. With an episode: its transcript
    as of `finqa play`, with reward and reason.

    Episodes are numbered as they ended. Control characters in model output are escaped.
    """
    place = locate_run(run)
    if episode:
        if failed or search:
            raise UsageError("--failed and --search select episodes of a list; with an episode they have no effect.")
        _show_episode(line, place, episode)
        return
    summary, notes = summarize_run(place), read_notes(place)
    selected = select_episodes(place, failed=failed, search=search)
    listed = list(itertools.islice(selected, limit + 1 if limit else None))
    more, shown = bool(limit) and len(listed) > limit, listed[: limit or None]
    rows = [_row(number, record, outcome) for number, record, outcome in shown]
    errors = count_errors(place)
    document = {
        "run": document_of(summary),
        **asdict(notes),
        "errors": [asdict(each) for each in errors],
        "episodes": rows,
        "more_episodes": more,
    }
    emit(document, as_json=line.as_json, text=lambda: "\n".join(_lines(summary, notes, errors, rows, more=more)))


def _show_episode(line: CommandLine, run: Path, reference: str) -> None:
    number, record = find_episode(run, reference)
    outcome = outcome_of(run, number, record)
    try:
        trajectory = recorded_trajectory(record)
    except MALFORMED as error:
        file = run / "trajectories.jsonl"
        reason = f"{file}, line {number}: not the record of an episode ({error!r})."
        raise DataError(reason, remedy=f"correct or remove that line of {file}") from error
    use = recorded_use(record)
    versions = sorted({turn.policy_version for turn in trajectory.turns})
    document = {
        "run": str(run),
        "number": number,
        "correct": outcome.correct,
        "answer": outcome.answer,
        "sampled_tokens": outcome.tokens,
        "usage": use.to_dict() if use else None,
        "policy_versions": versions,
        "record": record,
    }
    verdict = verdict_text(trajectory)
    parts = ", ".join(f"{name} {value:g}" for name, value in outcome.components.items())
    facts = [
        f"Answer: {outcome.answer}" if outcome.answer else "",
        "" if parts in verdict else parts,
        f"{plural(len(trajectory.turns), 'turn')}, {use.text() if use else 'tokens unknown'}, {outcome.seconds:.1f} s, "
        f"policy version {', '.join(map(str, versions)) or '-'}, {_plural_y(trajectory.retries, 'retr')}, "
        f"{_plural_y(trajectory.recoveries, 'recover')}",
    ]
    lines = [
        printable(f"Episode {number} of {run}: {trajectory.id}"),
        opening_text(trajectory.task),
        *(turn_text(place, turn) for place, turn in enumerate(trajectory.turns, start=1)),
        verdict,
        *truth_lines(record),
        *(printable(fact) for fact in facts if fact),
    ]
    emit(document, as_json=line.as_json, text="\n".join(lines))


def _plural_y(count: int, stem: str) -> str:
    return f"{count} {stem}{'y' if count == 1 else 'ies'}"


def _row(number: int, record: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    return {
        "number": number,
        "id": str(record.get("id")),
        "iteration": record.get("iteration"),
        "question": outcome.prompt,
        "status": outcome.status.value,
        "correct": outcome.correct,
        "reward": outcome.reward,
        "answer": outcome.answer,
    }


def _lines(
    summary: RunSummary,
    notes: RunNotes,
    errors: Sequence[RecordedError],
    rows: Sequence[Mapping[str, Any]],
    *,
    more: bool,
) -> Iterator[str]:
    width = screen_width() or WIDEST
    yield wrapped(f"{summary.path}: {summary.command or 'a run'}, {summary.state}", width)
    for label, text in _facts(summary, notes, errors):
        first, *others = wrapped(text, max(width - _LABEL, 30)).splitlines() or [""]
        yield f"{printable(label):{_LABEL - 2}}  {first}"
        yield from (f"{'':{_LABEL}}{other}" for other in others)
    for row in rows:
        graded = {None: "not graded", True: "right", False: "wrong"}[row["correct"]]
        ended = "" if row["status"] == "completed" else f", {row['status']}"
        reward = "" if row["reward"] is None else f"reward {row['reward']:g}, "
        yield wrapped(f"{row['number']}. {row['id']}  {reward}{graded}{ended}", width)
        question = printable(" ".join(str(row["question"]).split()))
        yield "   " + (question if len(question) <= width - 3 else f"{question[: width - 7]} ...")
    place = shlex.quote(str(summary.path))
    if more:
        yield wrapped(f"There are more episodes: --limit 0. One of them: finqa show {place} {rows[0]['number']}", width)
    elif rows:
        yield wrapped(f"One of them: finqa show {place} {rows[0]['number']}", width)


def _facts(summary: RunSummary, notes: RunNotes, errors: Sequence[RecordedError]) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each fact that is known."""
    if summary.reason:
        yield "reason", summary.reason
    if summary.score is not None:
        after = f", after iteration {summary.score.iteration}" if summary.score.iteration is not None else ""
        clause = f" ({summary.score.name}{after})" if summary.score.name == "accuracy" else after
        clause = clause if summary.score.graded != 0 else ""
        yield "score", f"{score_text(summary.score)}{clause}"
    if summary.use is not None:
        yield "usage", summary.use.text()
    if summary.created is not None:
        begun = f"{datetime.fromtimestamp(summary.created).astimezone():%Y-%m-%d %H:%M %Z}"
        worked = "" if summary.seconds is None else f"; {age_text(summary.seconds)} of work"
        yield (
            "begun",
            f"{begun}, {age_text(time.time() - summary.created)} ago{worked}; {size_text(summary.size)} on disk",
        )
    for name, value in notes.inputs.items():
        yield name, _input_text(value, str(notes.settings.get("model.name", "")))
    if notes.settings:
        chosen = [f"{path}={value}" for path, value in notes.settings.items() if path not in notes.automatic]
        count = len(notes.automatic)
        others = [f"{'and ' if chosen else ''}{count} set automatically: --json"] if count else []
        yield "settings", "  ".join([*chosen, *others])
    if notes.checkpoints:
        yield "checkpoints", ", ".join(map(str, notes.checkpoints))
    for nested in summary.nested:
        yield "step", f"{nested.path.relative_to(summary.path)}: {nested.state}"
    for place, node in enumerate(notes.nodes):
        yield "nodes" if place == 0 else "", node_text(node)
    if notes.counts:
        yield "events", ", ".join(f"{count} {name}" for name, count in notes.counts.items())
    for record in notes.last:
        yield "", event_text(record)
    for place, error in enumerate(errors[:_MOST_ERRORS]):
        yield "errors" if place == 0 else "", f"{error.count} {error.status}: {' '.join(error.error.split())}"
    if len(errors) > _MOST_ERRORS:
        yield "", f"and {len(errors) - _MOST_ERRORS} other errors: --json"
    if summary.command in RESUMABLE and summary.status not in (RUNNING, COMPLETED):
        yield "continue", f"finqa {summary.command} --resume {shlex.quote(str(summary.path))}"


def _model_text(model: str, files: Collection[str], name: str) -> str:
    """Return the model of a policy with its kind: a small policy that ships with finqa, a folder, or a hub id."""
    if not model:
        return "no model"
    if is_embedded(name):
        small = registry().first("resolve_policy", PolicyVersion, reference=name)
        if small is not None and small.model == model:
            return f"{name} (ships with finqa)"
    folder = Path(model).is_absolute() or any(Path(file).parent == Path(model) for file in files)
    return f"folder {model}" if folder else f"{model} (hub id)"


def _input_text(value: object, name: str) -> str:
    """Return what a manifest records of an input as text, without the digests of single files.

    Args:
        value: The input, as in the manifest.
        name: The setting `model.name` of the run.
    """
    if not isinstance(value, Mapping):
        return str(value)
    if "model" in value:
        adapter = f" with the adapter {value['adapter']}" if value.get("adapter") else ""
        return f"{_model_text(str(value['model'] or ''), value.get('files') or (), name)}{adapter}"
    if "name" in value:
        return f"{value['name']} ({str(value.get('digest'))[:19]})"
    return str(value.get("manifest") or ", ".join(map(str, value)))


def node_text(node: NodeState) -> str:
    """Return a node of a run as one line: engine replicas with their state, learner and rollout processes."""
    parts = [f"engine {replica.number} {replica.text}" for replica in node.replicas]
    if node.ranks:
        parts.append(f"learner process {', '.join(map(str, node.ranks))}")
    if node.workers:
        shown = (f"{number} (lost)" if number in node.lost else str(number) for number in node.workers)
        parts.append(f"rollout worker {', '.join(shown)}")
    return f"{node.node}: {'; '.join(parts)}"


def event_text(record: Mapping[str, Any]) -> str:
    """Return an event of a run as one line: time, name and facts."""
    at = record.get("time")
    clock = f"{datetime.fromtimestamp(at):%H:%M:%S} " if isinstance(at, int | float) else ""
    facts = ", ".join(_fact_text(name, value) for name, value in record.items() if name not in _PLAIN_FACTS)
    return f"{clock}{record.get('event')}: {facts}"


def _fact_text(name: str, value: object) -> str:
    """Return a fact of an event with its unit: `sync 630 kB`, `load 34 ms`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith("_bytes"):
            return f"{name.removesuffix('_bytes')} {size_text(value)}"
        if name.endswith("_s"):
            shown = age_text(value) if value >= 120 else f"{value:.1f} s" if value >= 1 else _milliseconds(value)
            return f"{name.removesuffix('_s')} {shown}"
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.001 else "<1 ms"
