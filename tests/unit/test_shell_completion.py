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
from fixtures.plugin_entry_points import install
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.completion import INDEX, SHELLS, complete, format_candidates, read_words, remember_plugins
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


def request(shell: str, line: str) -> dict[str, str]:
    """The variables by which a shell asks what the last word of a line may become."""
    words = line.split(" ")
    if shell == "bash":
        return {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


def test_components_of_installed_plugins_are_offered(tmp_path: Path) -> None:
    site = tmp_path / "site"
    places = {"PYTHONPATH": str(install(site, {"example": "plugin"})), "FINQA_HOME": str(tmp_path / "home")}
    before = {shell: ask(shell, **places, **request(shell, "finqa train --optimizer leave")).stdout for shell in SHELLS}
    assert not any("leave-one-out" in text for text in before.values())
    assert not (tmp_path / "home").exists(), "a completion writes nothing"

    listed = [sys.executable, "-m", "finqa_cli", "plugins"]
    subprocess.run(listed, env={**os.environ, **places}, capture_output=True, check=True)
    (file,) = (tmp_path / "home").glob("completions-*.json")
    for shell in SHELLS:
        asked = ask(shell, **places, **request(shell, "finqa train --optimizer leave"))
        assert "leave-one-out" in asked.stdout, asked.stderr
        imported = {line.rpartition("|")[2].strip() for line in asked.stderr.splitlines()}
        assert not imported & {"typer", "pydantic", "finqa_cli.app", "finqa_example", "importlib.metadata"}
        own = ask(shell, **places, **request(shell, "finqa train --optimizer gr"))
        assert "grpo" in own.stdout, "those of finqa are still there"

    written = file.read_text(encoding="utf-8")
    for broken in ("", "[]", '{"installed": 1}', written.replace('{"optimizer"', '{"engine": 3, "optimizer"')):
        file.write_text(broken, encoding="utf-8")
        asked = ask("bash", **places, **request("bash", "finqa train --engine tr"))
        assert asked.stdout == "transformers\n" and asked.returncode == 0

    file.write_text(written, encoding="utf-8")
    shutil.rmtree(site / "finqa_example-0.1.0.dist-info")
    asked = ask("bash", **places, **request("bash", "finqa train --optimizer leave"))
    assert asked.stdout == "\n", "it is not installed any more"
    subprocess.run(listed, env={**os.environ, **places}, capture_output=True, check=True)
    assert json.loads(file.read_text(encoding="utf-8"))["components"] == {}


def test_without_plugins_no_file_is_written_and_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    remember_plugins({}, {"FINQA_HOME": str(tmp_path / "home")})
    assert not (tmp_path / "home").exists()
    (tmp_path / "file").write_text("")
    remember_plugins({"engine": {"mine": "My engine"}}, {"FINQA_HOME": str(tmp_path / "file")})


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
