"""A package that `finqa plugins new` writes, installed, checked and broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.command_calls import document, failure
from fixtures.warm_python import run_module

from finqa_cli.app import main
from finqa_cli.extend.contract_check import CheckedKind
from finqa_cli.extend.scaffold import TEMPLATES

WITH_MODELS = ("engine", "codec", "learner")
"""Kinds whose suites make models with torch and transformers."""


def run(*command: str, kind: str, site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A module of Python, with the packages of a folder installed."""
    tables = Path(os.environ["FINQA_HOME"], "hypothesis")  # made once, in two seconds, rather than in each folder
    environment = {**os.environ, "PYTHONPATH": str(site), "HYPOTHESIS_STORAGE_DIRECTORY": str(tables)}
    if command[0] != "ruff":
        return run_module(*command, environment=environment, cwd=cwd)
    return subprocess.run(
        [sys.executable, "-m", *command], env=environment, cwd=cwd, capture_output=True, text=True, timeout=200
    )


def written(kind: str, folder: Path) -> tuple[Path, Path]:
    """A new package, and its component's module. Its metadata is beside it, as `pip install -e` puts it elsewhere."""
    name = f"my-{kind.replace('_', '-')}"
    assert main(["plugins", "new", kind, name, "--out", str(folder), "--json"]) == 0
    package = f"finqa_{name.replace('-', '_')}"
    metadata = folder / f"{package}-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: finqa-{name}\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(f"[finqa]\n{name} = {package}.plugin\n")
    return folder, folder / package / f"{kind}.py"


def change(module: Path, old: str, new: str) -> None:
    text = module.read_text()
    assert text.count(old) == 1
    module.write_text(text.replace(old, new))


def checked(kind: str, folder: Path) -> tuple[int, dict[str, str]]:
    """Exit status of `finqa plugins check`, and what it says of each broken promise."""
    name = f"my-{kind.replace('_', '-')}"
    done = run("finqa_cli", "plugins", "check", name, "--json", kind=kind, site=folder, cwd=folder.parent)
    assert "Traceback" not in done.stderr and "bug in finqa" not in done.stderr
    document = json.loads(done.stdout)
    assert document["plugin"].startswith(f"plugin '{name}'") and len(document["promises"]) > 2
    return done.returncode, {
        promise["name"]: promise["detail"] for promise in document["promises"] if promise["status"] == "failed"
    }


@pytest.mark.thorough
@pytest.mark.parametrize("kind", list(CheckedKind))
def test_a_new_package_is_clean_passes_its_tests_and_keeps_its_contract(kind: str, tmp_path: Path) -> None:
    folder, module = written(kind, tmp_path / "package")
    assert checked(kind, folder) == (0, {})
    own = run("pytest", "-q", "-p", "no:cacheprovider", kind=kind, site=folder, cwd=folder)
    assert own.returncode == 0, own.stdout
    assert " passed" in own.stdout and "failed" not in own.stdout
    rules = ("--isolated", "--line-length", "120")
    lint = run("ruff", "check", *rules, "--select", "E,F,I,B,UP", ".", kind=kind, site=folder, cwd=folder)
    assert lint.returncode == 0, lint.stdout
    form = run("ruff", "format", *rules, "--check", ".", kind=kind, site=folder, cwd=folder)
    assert form.returncode == 0, form.stdout
    assert module.is_file() and (folder / "README.md").read_text().count(f"my-{kind.replace('_', '-')}") > 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "old", "new", "promise", "said"),
    [
        (
            "reward",
            "total = 1.0 if correct else 0.5 / (1.0 + distance)",
            "total = float('nan')",
            "any answer gets the same finite verdict each time",
            "reward.py:",
        ),
        ("reward", "correct else 0.5", "correct else 2.5", "a right answer is worth more than a wrong one", "gets 1"),
        (
            "reward",
            "def score(self, request: RewardRequest)",
            "def score(self)",
            "score accepts the arguments of its contract",
            "(request)",
        ),
        ("optimizer", "reward - (total", "(total", "a better member never gets less", "advantages"),
        ("optimizer", "None if reward is None else ", "0.0 if reward is None else ", "a fault is left out", "0.0"),
        ("environment", "float(self._answer == self._right)", "0.0", "the expert earns more", "nothing done 0"),
        ("environment", 'id=f"{split}-{number}"', 'id=f"{number}"', "splits and tasks are complete", "AssertionError"),
        ("tracker", "self._write(dict(metrics))", "self._write(metrics[0])", "it takes a whole run", "tracker.py:"),
        (
            "sandbox",
            'if labels.items() <= known["labels"].items() and _alive(record):',
            "if _alive(record):",
            "a sandbox serves",
            "AssertionError",
        ),
        ("engine", "float(spread[token])", "float(spread.max())", "logprobs are those of the model", "AssertionError"),
        ("engine", "manual_seed(wanted.seed)", "manual_seed(0)", "only the seed determines", "assert "),
        ("chat_engine", "if self._closed:", "if False:", "start and close", "EngineError"),
        (
            "codec",
            "self._inside_marks.split(whole)",
            "[whole]",
            "control strings in contents stay text",
            "control token",
        ),
        ("codec", "() if stopped else (self._end,)", "()", "a turn that was cut is closed", "1 ends after a cut turn"),
        (
            "learner",
            "/ batch.loss_tokens",
            "/ len(batch.microbatches)",
            "the gradient does not depend",
            "comparison failed",
        ),
        ("learner", 'self._optimizer.load_state_dict(state["optimizer"])', "pass", "resumed steps are those", "assert"),
        ("call_format", "if len(lines) > 1:", "if len(lines) > 2:", "several calls and none are refused", "CallError"),
    ],
)
def test_what_breaks_the_contract_is_named(
    kind: str, old: str, new: str, promise: str, said: str, tmp_path: Path
) -> None:
    folder, module = written(kind, tmp_path / "package")
    change(module, old, new)
    status, broken = checked(kind, folder)
    assert status == 1
    assert any(name.startswith(promise) and said in detail for name, detail in broken.items()), broken


@pytest.mark.thorough
def test_a_new_provider_plays_the_default_environment(tmp_path: Path) -> None:
    folder, _ = written("sandbox", tmp_path / "package")
    play = ("eval", "scripted", "--sandbox=my-sandbox", "--sandboxes=1", "--limit=2", "--json")
    done = run("finqa_cli", *play, kind="sandbox", site=folder, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["episodes"] == 2


def test_a_plugin_that_prints_breaks_a_promise(tmp_path: Path) -> None:
    folder, module = written("reward", tmp_path / "package")
    plugin = module.with_name("plugin.py")
    plugin.write_text(plugin.read_text() + '\nprint("hello")\n')
    status, broken = checked("reward", folder)
    assert status == 1
    assert "stdout" in broken["the import of the plugin is fast and prints nothing"]


def test_a_new_reward_reads_numbers_as_tables_have_them(tmp_path: Path) -> None:
    folder, _ = written("reward", tmp_path / "package")
    read = "from finqa_my_reward.reward import _number; print([_number(t) for t in ('(26,832)', '$7', '7.06%', 'x')])"
    done = subprocess.run(
        [sys.executable, "-c", read], env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True
    )
    assert done.stdout == "[-26832.0, 7.0, 0.0706, None]\n", done.stderr


@pytest.mark.parametrize("name", ["My-Reward", "1st", "a b", "../up", "class", "", "my_reward"])
def test_a_name_that_no_package_can_have_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = failure(["plugins", "new", "reward", "--out", str(tmp_path / "x"), "--", name], capsys)
    assert status == 78
    assert "finqa plugins new reward my-reward" in said
    assert not (tmp_path / "x").exists()


def test_what_is_there_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    status, said = failure(["plugins", "new", "reward", "own", "--out", str(tmp_path)], capsys)
    assert status == 74 and "--out ANOTHER-FOLDER" in said
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_what_is_written_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "tracker", "mine", "--out", str(tmp_path / "mine")]) == 0
    said = capsys.readouterr().out
    assert "finqa plugins check mine" in said and "finqa train --tracker mine" in said


OWN = """
class Own:
    @staticmethod
    def tasks():
        for number in range(9):
            yield {"prompt": f"Say {number}"}

    def look(self, item: str) -> str:
        return item

    def answer(self, text: str) -> None:
        self.done = True

    def reward(self):
        return 0
"""


def test_tools_of_an_environment_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    found = document(["plugins", "check", "./own.py"], capsys)
    assert found["kept"] and found["tools"] == ["look"]


def test_one_error_is_printed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(f"{OWN}\n    def __init__(self):\n        raise KeyError('x')\n")
    assert main(["plugins", "check", "./own.py"]) == 1
    said = capsys.readouterr().out
    assert said.count("each time: the constructor of ./own.py raised KeyError: 'x' (") == said.count("KeyError") == 1
    assert said.count(": the same error\n") == 3


def test_what_cannot_be_checked_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = failure(["plugins", "check", "grppo", "--kind", "optimizer"], capsys)
    assert status == 78 and "grpo" in said


def test_every_kind_has_a_template_and_a_suite() -> None:
    import finqa_testing.contract as contract

    suites = {path.stem.removesuffix("_suite") for path in Path(contract.__file__).parent.glob("*_suite.py")}
    templates = {path.name.removesuffix(".py.jinja") for path in TEMPLATES.glob("*.py.jinja")}
    assert suites == set(CheckedKind) == templates - {"plugin", "test_contract"}
