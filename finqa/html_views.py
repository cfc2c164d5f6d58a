"""HTML output for notebooks, without scripts: a run and an episode. All texts are escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from finqa_cli.commands.recorded.list_runs import score_text
from finqa_cli.commands.shared.episode_transcript import action_text
from finqa_cli.commands.shared.output import age_text, size_text
from finqa_cli.errors import printable
from finqa_cli.masking import mask_text
from finqa_cli.runs.run_summary import RunSummary
from finqa_cli.types import Observation, Turn

MOST_ROWS = 10
"""Most episodes of a run that are shown."""

LONGEST = 2000
"""Most characters of a text that are shown."""

_STYLE = 'style="text-align:left;vertical-align:top;white-space:pre-wrap"'
_VERDICTS = {True: "right", False: "wrong", None: "not graded"}


def run_html(summary: RunSummary, episodes: Sequence[Sequence[object]], count: str) -> str:
    """Return the HTML of a run: its summary and its first episodes.

    Args:
        summary: Summary of the run, as in `finqa ls`.
        episodes: Number, id, question, answer, right answer and verdict of each episode that is shown.
        count: Number of all episodes, or the reason why they cannot be read.
    """
    facts = {
        "command": f"finqa {summary.command}",
        "status": summary.state,
        "reason": summary.reason,
        "score": score_text(summary.score),
        "begun": None if summary.created is None else f"{datetime.fromtimestamp(summary.created):%Y-%m-%d %H:%M}",
        "time": None if summary.seconds is None else age_text(summary.seconds),
        "size": size_text(summary.size),
        "episodes": count,
    }
    columns = ("", "episode", "question", "answer", "right answer", "verdict")
    return _page(str(summary.path), facts, columns, episodes)


def episode_html(name: str, facts: Mapping[str, object], turns: Iterable[Turn]) -> str:
    """Return the HTML of an episode: facts such as its question and answers, then each turn with its reply."""
    rows = [cells for place, turn in enumerate(turns, start=1) for cells in _rows(place, turn)]
    return _page(name, facts, ("turn", "policy", "reply"), rows)


def _rows(place: int, turn: Turn) -> Iterator[tuple[object, str, str]]:
    if not turn.steps:
        yield place, turn.text, _reply(turn.observation)
    for number, step in enumerate(turn.steps):
        yield "" if number else place, action_text(step.call), _reply(step.observation)


def _reply(observation: Observation | None) -> str:
    return "" if observation is None else observation.text


def _page(title: str, facts: Mapping[str, object], columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a heading, a table of the facts that are not empty, and a table of the rows, with all texts escaped."""
    known = "".join(
        f"<tr><th {_STYLE}>{_text(name)}</th>{_cell(value)}</tr>"
        for name, value in facts.items()
        if value not in (None, "") or name == "verdict"
    )
    head = "".join(f"<th {_STYLE}>{_text(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    return f"<div><strong>{_text(title)}</strong><table>{known}</table>{table}</div>"


def _cell(value: object) -> str:
    verdict = value is None or isinstance(value, bool)
    return f"<td {_STYLE}>{_VERDICTS[value] if verdict else _text(str(value))}</td>"  # type: ignore[index]


def _text(text: str) -> str:
    """Return a text for HTML: shortened, with secrets masked, control characters made visible, and escaped."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)"
    return html.escape(printable(mask_text(cut)))
