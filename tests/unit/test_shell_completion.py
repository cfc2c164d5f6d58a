"""Completion in bash, zsh and fish: what is offered, that it is up to date, and that it needs nothing heavy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.completion import INDEX, SHELLS, complete, format_candidates, read_words
from finqa_cli.completion_index import index_text


@pytest.fixture(scope="module")
def index() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(INDEX.read_text(encoding="utf-8"))
    return found


def offered(index: dict[str, Any], line: str) -> list[str]:
    words, incomplete = read_words("zsh", {"_TYPER_COMPLETE_ARGS": line})
    return [text for text, _ in complete(index, words, incomplete)]


def test_the_index_is_that_of_the_commands() -> None:
    assert INDEX.read_text(encoding="utf-8") == index_text(), "make reference"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("finqa ev", ["eval"]),
        ("finqa data import ta", ["tables"]),
        ("finqa train --engine tr", ["transformers"]),
        ("finqa train --engine=tr", ["--engine=transformers"]),
        ("finqa train --tracker wa", ["wandb"]),
        ("finqa dpo --loss-type ", ["sigmoid", "hinge", "ipo"]),
        ("finqa eval --set eval.att", ["eval.attempts="]),
        ("finqa train --config qwen3-1", ["qwen3-14b", "qwen3-14b-daytona"]),
        ("finqa eval --resc", ["--rescore"]),
        ("finqa eval scr", ["scripted"]),
        ("finqa nothing --x", []),
        ("finqa eval --limit ", []),
    ],
)
def test_what_is_offered(line: str, wanted: list[str], index: dict[str, Any], empty_folder: Path) -> None:
    assert offered(index, line) == wanted


def test_runs_are_offered_with_what_they_are(index: dict[str, Any], empty_folder: Path) -> None:
    for name, text in (("a", '{"command": "train", "status": "completed"}'), ("b", "no JSON"), ("c", "{}")):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "run.json").write_text(text)
    for line in ("finqa report ", "finqa eval --resume ", "finqa show ru", "finqa eval runs/"):
        assert "runs/a" in offered(index, line) and "runs/b" not in offered(index, line)
    assert dict(complete(index, ["report"], "runs"))["runs/a"] == "train, completed"


@given(st.lists(st.text(max_size=12), max_size=5), st.text(max_size=12), st.sampled_from(SHELLS))
def test_any_line_is_answered(words: list[str], incomplete: str, shell: str) -> None:
    index = json.loads(INDEX.read_text(encoding="utf-8"))
    assert isinstance(format_candidates(shell, list(complete(index, words, incomplete))), str)


@given(st.text(max_size=40), st.integers(0, 9))
def test_any_request_is_read(line: str, place: int) -> None:
    for shell in SHELLS:
        words, incomplete = read_words(
            shell, {"COMP_WORDS": line, "COMP_CWORD": str(place), "_TYPER_COMPLETE_ARGS": line}
        )
        assert isinstance(words, list) and isinstance(incomplete, str)


def ask(shell: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "finqa_cli"],
        env={**os.environ, "_FINQA_COMPLETE": f"complete_{shell}", **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_it_imports_nothing_of_the_product() -> None:
    asked = ask("bash", COMP_WORDS="finqa train --engine = tr", COMP_CWORD="4")
    assert asked.stdout == "transformers\n" and asked.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in asked.stderr.splitlines()}
    assert "finqa_cli.completion" in imported
    assert not imported & {"typer", "pydantic", "finqa_cli.app", "rich", "asyncio"}


def test_fish_is_told_whether_there_is_anything() -> None:
    line = {"_TYPER_COMPLETE_ARGS": "finqa eval --limit ", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    assert ask("fish", **line).returncode == 1
    assert ask("fish", **{**line, "_TYPER_COMPLETE_ARGS": "finqa ev"}).returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_script_that_is_installed(tmp_path: Path) -> None:
    program = tmp_path / "finqa"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m finqa_cli "$@"\n')
    program.chmod(0o755)
    script = f"""
        eval "$({program} --show-completion bash)"
        COMP_WORDS=(finqa plugins sh); COMP_CWORD=2
        _finqa_completion {program}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["show"], done.stderr
