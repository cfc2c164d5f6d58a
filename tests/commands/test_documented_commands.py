"""Commands and files that README and docs show: the real parsers take them, and what can be run in a second runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from fixtures import convfinqa_dialogues, finqa_text_rows, tatqa_pages
from fixtures.command_lines import parse
from fixtures.document_blocks import blocks_of

from finqa_cli.app import main

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "plugins/README.md"]
COMMAND = re.compile(r"^(?:[A-Z_]+=\S+ )*finqa (.*)")
"""A command of a console or bash block, with the variables before it."""


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The words of every finqa command in a page's console and bash blocks."""
    shells = (block for block in blocks_of(page.read_text(encoding="utf-8")) if block.is_shell)
    steps = (step.command for block in shells for step in block.steps())
    return [shlex.split(found[1], comments=True) for command in steps if (found := COMMAND.match(command))]


PAGES = [page for page in DOCUMENTS if commands(page)]


def test_most_documents_show_commands() -> None:
    shown = {str(page.relative_to(ROOT)) for page in PAGES}
    assert len(shown) >= 30
    assert shown >= {"docs/guides/daytona.md", "docs/own-environments.md", "docs/guides/experiments.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_the_documents_is_one(page: Path, empty_folder: Path) -> None:
    found = commands(page)
    assert found
    for words in found:
        parse(words)


def test_a_command_that_is_none_is_noticed(empty_folder: Path) -> None:
    for words in (["evil", "scripted"], ["eval", "scripted", "--no-such-option"], ["data", "fetch", "nothing"]):
        with pytest.raises(Exception, match=r"[Nn]o such|is not one of"):
            parse(words)


def test_the_settings_for_published_figures_play_with_that_prompt(empty_folder: Path) -> None:
    settings, prompt = blocks(ROOT / "docs/published-figures.md", "toml")
    Path("published.toml").write_text(settings, encoding="utf-8")
    Path("prompt.toml").write_text(prompt, encoding="utf-8")
    play = ["eval", "scripted", "--limit=1", "--sandboxes=1", "--config=published.toml", "--run-dir=run", "-q"]
    assert main(play) == 0
    record = json.loads(Path("run/trajectories.jsonl").read_text(encoding="utf-8"))
    assert record["messages"][0]["content"].startswith("You are a financial analyst. Answer from the tables of ")
    assert record["messages"][1]["content"] == record["task"]["prompt"]


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ("finqa-text", {"accuracy", "program_accuracy"}),
        ("convfinqa", {"turn_execution", "turn_program", "dialogue_correct"}),
        ("tatqa", {"em", "f1", "scale"}),
    ],
)
def test_measures_that_are_named_are_written(environment: str, names: set[str], empty_folder: Path) -> None:
    page = (ROOT / "docs/published-figures.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in names)
    data = {
        "finqa-text": lambda: finqa_text_rows.write(Path("dev.json"), finqa_text_rows.original(1)),
        "convfinqa": lambda: convfinqa_dialogues.write(Path("dev.json"), convfinqa_dialogues.original(1)),
        "tatqa": lambda: tatqa_pages.write(Path("dev.json"), tatqa_pages.page(1)),
    }[environment]()
    play = ["eval", "scripted", f"--environment={environment}", f"--data={data}", "--split=dev", "--run-dir=run", "-q"]
    assert main(play) == 0
    metrics = json.loads(Path("run/metrics.json").read_text(encoding="utf-8"))
    assert names <= set(metrics) | set(metrics["measures"])


def test_names_of_the_migration_page_are_those_of_a_run(empty_folder: Path) -> None:
    pytest.importorskip("torch", reason="needs finqa[train]")
    few = ["--sandboxes=4", "--iterations=1", "--group-size=2", "--target-groups-per-iter=2", "--max-rollout-rounds=1"]
    assert main(["train", "--model=embedded", *few, "--limit=2", "--save-token-ids", "--run-dir=run", "-q"]) == 0
    run = Path("run")
    tree: dict[str, Any] = {
        "trajectories.jsonl": json.loads((run / "trajectories.jsonl").read_text().splitlines()[0]),
        "metrics.jsonl": {},
    }
    for line in (run / "metrics.jsonl").read_text().splitlines():
        tree["metrics.jsonl"] |= json.loads(line)
    page = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| `(\w+\.jsonl)` there \| here \|\n\| --- \| --- \|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert [name for name, _ in tables] == ["trajectories.jsonl", "metrics.jsonl"]
    for file, rows in tables:
        for row in rows.splitlines():
            for name in re.findall(r"`([^`]+)`", row.split("|")[2]):
                if not name.startswith("-") and name not in ("train", "eval"):
                    assert _has(tree[file], name.replace("[]", ".0")), (file, name)
    for name in ("settings.json", "run.json", "events.jsonl", "checkpoints/step_1/policy"):
        assert (run / name).exists() and name.replace("step_1", "step_N") in page


def _has(tree: Any, path: str) -> bool:
    """Whether a dotted path leads to a value; numbers are places of a list."""
    for part in path.split("."):
        if part.isdecimal():
            tree = tree[int(part)]
        elif part not in tree:
            return False
        else:
            tree = tree[part]
    return True
