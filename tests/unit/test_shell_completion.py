"""Completion in bash, zsh and fish: what is offered, that it follows changes, and that it needs nothing heavy."""

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

from finqa_cli.app import COMMANDS, LazyGroup
from finqa_cli.completion import SHELLS, complete, format_candidates, read_index, read_words
from finqa_cli.completion_index import index as make_index
from finqa_cli.extend import registry

ROOT = Path(__file__).parents[2]

HEAVY = {"typer", "pydantic", "finqa_cli.app", "finqa_cli.completion_index", "rich", "asyncio", "importlib.metadata"}


@pytest.fixture(scope="module")
def index() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(make_index()))  # as it is read from its file
    return found


def offered(index: dict[str, Any], line: str) -> list[str]:
    words, incomplete = read_words("zsh", {"_TYPER_COMPLETE_ARGS": line})
    return [text for text, _ in complete(index, words, incomplete)]


def test_every_command_option_and_component_is_offered(index: dict[str, Any]) -> None:
    assert offered(index, "finqa ") == list(COMMANDS)
    group = LazyGroup(name="finqa")
    for name in COMMANDS:
        command = group.get_command(None, name)
        for line, part in [(f"{name} {each}", part) for each, part in getattr(command, "commands", {}).items()] or [
            (name, command)
        ]:
            flags = {flag for each in part.params if not getattr(each, "hidden", False) for flag in each.opts}
            assert {flag for flag in flags if flag.startswith("--")} <= set(offered(index, f"finqa {line} --")), line
    engines = [component.name for component in registry().components("engine")]
    assert sorted(offered(index, "finqa train --engine ")) == sorted(engines)


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


INDEX = make_index()


@given(st.lists(st.text(max_size=12), max_size=5), st.text(max_size=12), st.sampled_from(SHELLS))
def test_any_line_is_answered(words: list[str], incomplete: str, shell: str) -> None:
    index = INDEX
    assert isinstance(format_candidates(shell, list(complete(index, words, incomplete))), str)


@given(st.text(max_size=40), st.integers(0, 9))
def test_any_request_is_read(line: str, place: int) -> None:
    for shell in SHELLS:
        words, incomplete = read_words(
            shell, {"COMP_WORDS": line, "COMP_CWORD": str(place), "_TYPER_COMPLETE_ARGS": line}
        )
        assert isinstance(words, list) and isinstance(incomplete, str)


def ask(shell: str, home: Path, line: str, **environment: str) -> tuple[str, set[str]]:
    """Complete the last word of a line in a process of its own; return what it prints, and the modules it imports."""
    words = line.split(" ")
    typed = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    if shell != "bash":
        typed = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    asked = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "finqa_cli"],
        cwd=home.parent,  # `-m` prefers packages of the current folder
        env={**os.environ, "FINQA_HOME": str(home), "_FINQA_COMPLETE": f"complete_{shell}", **typed, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    messages = [each for each in asked.stderr.splitlines() if not each.startswith("import time:")]
    assert not messages, messages
    assert asked.returncode == 0 or environment
    return asked.stdout, {each.rpartition("|")[2].strip() for each in asked.stderr.splitlines()}


def test_the_first_completion_makes_the_index_and_the_next_ones_import_nothing_of_the_product(tmp_path: Path) -> None:
    line = "finqa train --engine = tr"
    made, _ = ask("bash", tmp_path, line)
    (file,) = tmp_path.glob("completions-*.json")
    first = file.stat().st_mtime_ns
    for shell in SHELLS:
        shown, imported = ask(shell, tmp_path, "finqa train --engine tr")
        assert "transformers" in shown and not imported & HEAVY
    assert made == "transformers\n" and file.stat().st_mtime_ns == first, "it is not made again"


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    environment = {"FINQA_HOME": str(tmp_path)}
    assert read_index(environment, lambda: INDEX) == INDEX
    (file,) = tmp_path.glob("completions-*.json")
    whole = file.read_text("utf-8")
    assert read_index(environment, lambda: {}["not called"]) == json.loads(json.dumps(INDEX))
    for broken in ("", "[]", '{"stamp": 1}', '{"index": 3}', whole.replace('"stamp"', '"other"'), whole[:-9]):
        file.write_text(broken, encoding="utf-8")
        assert read_index(environment, lambda: INDEX) == INDEX
        assert file.read_text("utf-8") == whole


def test_fish_is_told_whether_there_is_anything(tmp_path: Path) -> None:
    def status(line: str) -> int:
        asked = {"_FINQA_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
        environment = {**os.environ, "FINQA_HOME": str(tmp_path), "_TYPER_COMPLETE_ARGS": line, **asked}
        return subprocess.run([sys.executable, "-m", "finqa_cli"], env=environment, check=False).returncode

    assert (status("finqa eval --limit "), status("finqa ev")) == (1, 0)


def test_components_of_installed_plugins_are_offered_until_they_are_removed(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    place = {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    line, home = "finqa train --optimizer leave", tmp_path / "home"
    assert ask("bash", home, line, **place)[0] == "\n"
    install(site, {"example": "plugin"})
    for shell in SHELLS:
        assert "leave-one-out" in ask(shell, home, line, **place)[0]
    shown, imported = ask("zsh", home, "finqa train --optimizer gr", **place)
    assert "grpo" in shown and not imported & {*HEAVY, "finqa_example"}
    shutil.rmtree(site / "finqa_example-0.1.0.dist-info")
    assert ask("bash", home, line, **place)[0] == "\n"


def test_a_change_of_a_checkout_is_offered_and_a_syntax_error_is_not_shown(tmp_path: Path) -> None:
    root, home, line = tmp_path / "checkout", tmp_path / "home", "finqa pla"
    shutil.copytree(
        ROOT / "finqa_cli", root / "finqa_cli", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
    )
    shutil.copytree(ROOT / "plugins", root / "plugins", symlinks=True, ignore=shutil.ignore_patterns("*.safetensors"))
    (root / "pyproject.toml").touch()
    place = {"PYTHONPATH": f"{root}{os.pathsep}{root / 'plugins'}"}
    assert ask("bash", home, line, **place)[0] == "play\nplan\n"
    app = root / "finqa_cli/app.py"
    app.write_text(app.read_text("utf-8").replace('"play": (', '"player": (').replace('"play",', '"player",'), "utf-8")
    assert ask("bash", home, line, **place)[0] == "player\nplan\n"
    app.write_text("def", "utf-8")
    assert ask("bash", home, line, **place)[0] == "player\nplan\n", "the last index that could be made"


def test_a_home_that_cannot_be_written_and_a_failure_without_an_index_are_no_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {"FINQA_HOME": str(tmp_path / "file")}
    assert read_index(environment, lambda: INDEX) == INDEX
    assert list(complete(read_index(environment, lambda: {}["a failure"]), [], "")) == []


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
