"""Draw the pictures of the README from a training run: its learning curve, and one held-out question before and after.

    python docs/_site/draw_run.py RUN [PREFIX]

writes `docs/assets/PREFIXlearning-curve.svg` and `docs/assets/PREFIXepisode.svg`. The run is one of `make demo`, or
with the prefix `llm-` one of `make demo-llm`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ASSETS = Path(__file__).parents[1] / "assets"
WIDTH = 760
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 46, 48
PLOT_HEIGHT = 210
INK, GREY, BLUE, GREEN, RED = "#1c2330", "#687080", "#2f5bd0", "#1c7c43", "#b3261e"
MOST_CHARACTERS = 84
"""Characters of a line of the episode."""


def text(
    x: float, y: float, words: str, *, size: int = 13, fill: str = INK, anchor: str = "start", mono: bool = False
) -> str:
    """Return a line of text at a place in pixels."""
    family = "ui-monospace, Menlo, Consolas, monospace" if mono else "system-ui, Segoe UI, Helvetica, Arial, sans-serif"
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="{fill}" font-family="{family}" xml:space="preserve">{escape(words)}</text>'


def picture(title: str, height: int, parts: list[str]) -> str:
    """Return an SVG document on a white card, which is readable on light and dark pages."""
    card = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6" fill="#ffffff" stroke="#d6dae2"/>'
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    body = "\n".join([f"<title>{escape(title)}</title>", card, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n{body}\n</svg>\n'


def learning_curve(metrics: list[dict[str, Any]]) -> str:
    """Return the mean reward by iteration with its 95 % interval, and the held-out accuracy of the evaluations.

    Args:
        metrics: Records of `metrics.jsonl`.
    """
    steps = [record for record in metrics if record["kind"] == "train"]
    evaluations = [record for record in metrics if record["kind"] == "eval"]
    last = steps[-1]["iteration"]

    def x(iteration: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT - 20) * iteration / last

    def y(share: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - share)

    parts = [
        text(LEFT, 26, "GRPO on two processor cores: reward while training, accuracy on held-out companies", size=14)
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(share):g}" y2="{y(share):g}" stroke="#e4e7ed"/>')
        parts.append(text(LEFT - 8, y(share) + 4, f"{share:.2f}", size=12, fill=GREY, anchor="end"))
    parts += [
        text(x(each), y(0) + 18, str(each), size=12, fill=GREY, anchor="middle")
        for each in range(0, last + 1, 4 if last > 8 else 1)
    ]
    parts.append(text((LEFT + WIDTH) / 2, y(0) + 38, "iteration", size=12, fill=GREY, anchor="middle"))
    upper = [f"{x(step['iteration']):.1f},{y(step['reward_interval'][1]):.1f}" for step in steps]
    lower = [f"{x(step['iteration']):.1f},{y(step['reward_interval'][0]):.1f}" for step in reversed(steps)]
    parts.append(f'<polygon points="{" ".join(upper + lower)}" fill="{BLUE}" fill-opacity="0.15"/>')
    line = " ".join(f"{x(step['iteration']):.1f},{y(step['reward_mean']):.1f}" for step in steps)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="2"/>')
    for record in evaluations:
        place, (low, high) = x(record["iteration"]), record["accuracy_interval"]
        parts.append(
            f'<line x1="{place:g}" x2="{place:g}" y1="{y(low):.1f}" y2="{y(high):.1f}" stroke="{GREEN}"'
            ' stroke-width="2"/>'
        )
        parts.append(f'<circle cx="{place:g}" cy="{y(record["accuracy"]):.1f}" r="5" fill="{GREEN}"/>')
        end = record["iteration"] == last
        words = f"accuracy {record['accuracy']:.3f}"
        right, down, anchor = (-10, -9, "end") if end else (10, 14, "start")
        parts.append(text(place + right, y(record["accuracy"]) + down, words, fill=GREEN, anchor=anchor))
    parts.append(text(x(last * 0.62), y(0.27), "mean reward, 95 % interval", fill=BLUE))
    return picture(
        "Mean reward by iteration, and held-out accuracy before and after", TOP + PLOT_HEIGHT + BOTTOM, parts
    )


def episode(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return one question with the query and the answer of two policies.

    Args:
        before: Record of `trajectories.jsonl` before training.
        after: Record of the same question after it.
    """
    parts = [text(20, 30, f"“{before['task']['prompt']}”", size=15)]
    y = 58
    for title, record in (("Before training", before), (f"After {after['iteration']} iterations", after)):
        right = record["reward"] == 1
        parts.append(text(20, y, title, fill=GREY))
        y += 22
        for turn in record["turns"]:
            call = turn["tool_call"]
            if call["name"] not in ("sql_query", "submit_answer"):
                continue
            value = call["arguments"]["query" if call["name"] == "sql_query" else "answer"]
            lines = _wrapped(f"{call['name']}  {value}")
            for each in lines:
                parts.append(text(32, y, each, size=12, mono=True))
                y += 18
            if call["name"] == "sql_query":
                parts.append(text(32, y, f"→ {turn['observation']['text']}", size=12, mono=True, fill=GREY))
                y += 18
        verdict = f"{'✓ right' if right else '✗ wrong'}: the answer is {record['truth']}"
        parts.append(text(32, y + 2, verdict, fill=GREEN if right else RED))
        y += 34
    return picture("One held-out question before and after training", y - 14, parts)


def _wrapped(words: str) -> list[str]:
    """Return lines of at most `MOST_CHARACTERS`, the second and later ones indented."""
    lines = [""]
    for word in words.split(" "):
        if len(lines[-1]) + len(word) + 1 > MOST_CHARACTERS:
            lines.append("          ")
        lines[-1] += f"{' ' if lines[-1].strip() else ''}{word}"
    return lines


def _is_plain(record: dict[str, Any]) -> bool:
    """Return whether every turn has a call with the argument that is drawn."""
    wanted = {"sql_query": "query", "submit_answer": "answer"}
    calls = [turn["tool_call"] for turn in record["turns"]]
    return all(call is not None and wanted.get(call["name"], "") in ("", *call["arguments"]) for call in calls)


def main(run: Path, prefix: str = "") -> None:
    """Write both pictures of a run; the question is the one whose two episodes are the shortest."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    lines = (run / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()
    played: dict[str, list[dict[str, Any]]] = {}
    for record in map(json.loads, lines):
        if record["phase"] == "eval":
            played.setdefault(record["task"]["id"], []).append(record)
    pairs = [sorted(records, key=lambda each: each["iteration"]) for _, records in sorted(played.items())]
    improved = [pair for pair in pairs if len(pair) == 2 and [each["reward"] for each in pair] == [0, 1]]
    before, after = min(
        filter(lambda pair: all(map(_is_plain, pair)), improved), key=lambda pair: len(json.dumps(pair))
    )
    ASSETS.mkdir(exist_ok=True)
    (ASSETS / f"{prefix}learning-curve.svg").write_text(learning_curve(metrics), encoding="utf-8")
    (ASSETS / f"{prefix}episode.svg").write_text(episode(before, after), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
