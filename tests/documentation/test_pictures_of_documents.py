"""The pictures of the README: drawn from the files of a run, as XML that a browser reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs/assets"
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    """The words of a picture, line by line."""
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def _attempt(iteration: int, query: str, answer: str) -> dict[str, Any]:
    calls = [
        ("sql_query", {"query": query}, '[{"value":1}]'),
        ("submit_answer", {"answer": answer}, "Answer submitted"),
    ]
    return {
        **{"phase": "eval", "iteration": iteration, "truth": "7", "reward": float(answer == "7")},
        "task": {"id": "q1", "prompt": "How much is <it> & why?"},
        "turns": [
            {"tool_call": {"name": name, "arguments": arguments}, "observation": {"text": reply}}
            for name, arguments, reply in calls
        ],
    }


def test_a_run_is_drawn_with_its_figures_and_its_words(tmp_path: Path) -> None:
    run, scripts = tmp_path / "run", tmp_path / "docs/_site"
    run.mkdir()
    scripts.mkdir(parents=True)
    script = scripts / "draw_run.py"
    script.write_text((ROOT / "docs/_site/draw_run.py").read_text(encoding="utf-8"), encoding="utf-8")
    evaluations = [
        {"kind": "eval", "iteration": each, "accuracy": score, "accuracy_interval": [score - 0.1, score + 0.1]}
        for each, score in ((0, 0.125), (2, 0.875))
    ]
    steps = [
        {"kind": "train", "iteration": each, "reward_mean": each / 4, "reward_interval": [0.1, 0.9]} for each in (1, 2)
    ]
    lines = [json.dumps(each) for each in (*evaluations, *steps)]
    (run / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    attempts = [_attempt(2, "SELECT '<b>'", "7"), _attempt(0, "SELECT " + "x" * 60 + " FROM " + "y" * 60, "8")]
    (run / "trajectories.jsonl").write_text("\n".join(map(json.dumps, attempts)), encoding="utf-8")
    subprocess.run([sys.executable, str(script), str(run)], check=True, timeout=60)
    curve = texts((tmp_path / "docs/assets/learning-curve.svg").read_text(encoding="utf-8"))
    assert {"accuracy 0.125", "accuracy 0.875"} <= set(curve)
    words = texts((tmp_path / "docs/assets/episode.svg").read_text(encoding="utf-8"))
    assert words[0] == "“How much is <it> & why?”"
    assert words.index("Before training") < words.index("✗ wrong: the answer is 7")
    assert words.index("After 2 iterations") < words.index("✓ right: the answer is 7")
    assert "sql_query  SELECT '<b>'" in words and max(map(len, words)) <= 84


def test_the_committed_pictures_are_small_and_name_their_figures() -> None:
    for name, words in (
        ("learning-curve", "accuracy 0.938"),
        ("episode", "After 16 iterations"),
        ("llm-learning-curve", "accuracy 0.531"),
        ("llm-episode", "After 2 iterations"),
    ):
        picture = (ASSETS / f"{name}.svg").read_text(encoding="utf-8")
        assert words in texts(picture) and len(picture) < 10_000


def test_the_photographs_of_a_report_are_small_pictures_that_the_readme_shows() -> None:
    image = pytest.importorskip("PIL.Image", reason="needs finqa[report]")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("report", "report-episode"):
        path = ASSETS / f"{name}.png"
        assert f"docs/assets/{name}.png" in readme and path.stat().st_size < 150_000
        with image.open(path) as picture:
            assert picture.width == 1000 and len(picture.convert("RGB").getcolors(1_000_000)) > 20, "an empty page"
