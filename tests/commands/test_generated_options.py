"""Options, help, variables and reference follow from one declaration per setting."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from finqa_cli.app import COMMANDS, main
from finqa_cli.commands.dpo import OFFERED as OF_DPO
from finqa_cli.settings.offered import OF_EVAL, OF_TRAIN, offered_settings
from finqa_cli.settings.schema import DECLARATIONS

pytestmark = pytest.mark.usefixtures("empty_folder")

ROOT = Path(__file__).parents[2]
GROUPS = ("config", "data", "experiment", "model", "plugins", "policy", "rewards", "sandbox", "snapshot")


def help_text(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_short_help_under_headings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    short = help_text([command, "-h"], capsys)
    assert short == help_text([command, "--help"], capsys)
    if command not in GROUPS:
        whole = help_text([command, "--help-all"], capsys)
        assert "\nGeneral:\n" in short and len(whole) >= len(short)
        assert "[default: (" not in whole


def test_the_help_of_train_fits_on_a_page_and_the_whole_one_has_every_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short, whole = help_text(["train", "--help"], capsys), help_text(["train", "--help-all"], capsys)
    assert len(short.splitlines()) <= 70
    panels = re.findall(r"^([A-Z].*):$", short, flags=re.MULTILINE)
    assert panels[:2] == ["Options", "Components"] and panels[-1] == "General" and len(panels) >= 8
    for declaration in offered_settings(OF_TRAIN):
        flags = re.findall(r"--[\w-]+", declaration.about.flags)
        assert all(re.search(rf"{flag}\b", whole) for flag in flags), declaration.path
        shown = re.search(rf"^  {flags[0]} ", short, flags=re.MULTILINE) is not None
        assert shown == declaration.about.main, declaration.path


def shown_default(flag: str, text: str) -> str:
    """The default that a help shows of a flag; empty where it shows none."""
    found = re.search(rf"^  (?:-\w, )?{flag}\b.*?(?=^  -|\n\n)", text, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, flag
    default = re.search(r"default: ([^]]*)\]", " ".join(found[0].split()))
    return default[1].replace("- ", "-") if default else ""


HELP_OF = {
    "a small policy": ("train", []),
    "an environment": ("train", ["--environment=code"]),
    "a setting": ("train", ["--set=environment.name=mbpp"]),
    "a shipped file": ("train", ["--config=qwen3-14b"]),
    "another model": ("train", ["--model=Qwen/Qwen3-8B"]),
    "an expert": ("eval", ["scripted", "--environment=forecast"]),
    "a policy": ("eval", ["embedded-forecast", "--environment=forecast"]),
}


@pytest.mark.parametrize("name", HELP_OF)
def test_the_help_shows_the_defaults_of_what_is_chosen(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, given = HELP_OF[name]
    text = help_text([command, *given, "--help-all"], capsys)
    settings = ["--config=qwen3-14b"] * (name == "a shipped file")
    if command == "eval":
        settings += [f"--engine={given[0]}" if given[0] == "scripted" else f"--model={given[0]}"]
    settings += [
        word.replace("--environment=", "--set=environment.name=")
        for word in given
        if word != given[0] or command == "train"
    ]
    loaded = json.loads(help_text(["config", "show", "--json", *dict.fromkeys(settings)], capsys))["settings"]
    compared = 0
    for each in offered_settings(OF_TRAIN if command == "train" else OF_EVAL):
        value = loaded
        for part in each.path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        shown = shown_default(re.findall(r"--[\w-]+", each.about.flags)[0], text)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and re.fullmatch(r"[\d.e-]+", shown):
            assert float(shown) == value, each.path
            compared += 1
    assert compared >= 10


def test_the_help_says_what_it_is_the_help_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Defaults of environment finqa, model embedded: " in help_text(["train", "-h"], capsys)
    text = help_text(["train", "--environment", "code", "-h"], capsys)
    assert "Defaults of environment code, model embedded-code: " in text
    assert shown_default("--environment", text) == "finqa" and shown_default("--model", text) == "embedded-code"
    whole = " ".join(help_text(["train", "--environment", "code", "--help-all"], capsys).split())
    assert "(mbpp). [no option of this environment]" in whole
    assert "Defaults of environment finqa, engine scripted: " in help_text(["eval", "scripted", "-h"], capsys)
    Path("finqa.toml").write_text("[train]\niterations = 77\n")
    assert shown_default("--iterations", help_text(["train", "-h"], capsys)) == "77"
    assert shown_default("--iterations", help_text(["train", "-h", "--iterations=3"], capsys)) == "77"


@pytest.mark.parametrize(
    "mistake",
    [
        ["--environment=absent"],
        ["--lr=fast"],
        ["--set=no.setting=1"],
        ["--config=absent.toml"],
    ],
)
def test_a_mistake_beside_help_is_no_obstacle(mistake: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = help_text(["train", "--help", *mistake], capsys)
    assert shown_default("--reward", text) == "environment" and shown_default("--group-size", text)


def test_every_flag_is_offered_by_a_command_and_means_one_setting_there() -> None:
    every = {each.path for each in DECLARATIONS.values() if each.about.flags}
    others = {each.path for each in offered_settings(("sft", "eval", *OF_DPO))}
    assert {each.path for each in offered_settings(OF_TRAIN)} | others == every
    for offered in (OF_TRAIN, OF_DPO):
        flags = [flag for each in offered_settings(offered) for flag in re.findall(r"--[\w-]+", each.about.flags)]
        assert len(flags) == len(set(flags))


def test_a_section_without_a_flag_cannot_be_offered() -> None:
    with pytest.raises(LookupError, match="learner"):
        list(offered_settings(["learner"]))


def test_flags_that_the_short_help_leaves_out_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--model=embedded", "--lora-alpha=0"]) == 78
    assert "lora.alpha = 0 (flag)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--model=a", "--set", "model.name=b"], ("--model", "--set model.name=")),
        (["--engine=scripted", "--set", "engine=human"], ("--engine", "--set engine.name=")),
        (["--set", "engine=scripted", "--set", "engine.name=human"], ("--set engine", "--set engine.name")),
    ],
)
def test_a_flag_and_set_for_one_setting_are_a_usage_error(
    arguments: list[str], names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", *arguments]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in names) and "fix: give one of them" in said


@pytest.mark.parametrize("source", ["environment", ".env"])
def test_two_variables_for_one_setting_are_an_error(
    source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("FINQA_POOL__SANDBOXES", "SANDBOX_COUNT")
    if source == ".env":
        Path(".env").write_text("".join(f"{name}=3\n" for name in names))
    else:
        for name in names:
            monkeypatch.setenv(name, "3")
    assert main(["config", "show"]) == 78
    said = capsys.readouterr().err
    assert f"FINQA_POOL__SANDBOXES and SANDBOX_COUNT both set pool.sandboxes ({source})." in said
    if source == "environment":
        monkeypatch.setenv("SANDBOX_COUNT", "")  # an empty value counts as not set
        assert main(["config", "show"]) == 0


NEW = """    dummy_share: Fraction = setting(
        0.25, "Share of nothing", "--dummy-share", variable="DUMMY_SHARE", unit="parts", main=True
    )
    iterations: PositiveInt"""

TRY = """
import sys
from finqa_cli.app import main
from finqa_cli.settings.settings_reference import reference_page, variables_text
assert main(["train", "--help"]) == 0
assert main(["config", "show", "--origin"]) == 0
print(reference_page(), variables_text())
sys.exit(main(["train", "--model=embedded", "--dummy-share", "7"]))
"""


def test_a_new_setting_is_one_change_in_one_file(tmp_path: Path) -> None:
    product = tmp_path / "finqa_cli"
    product.mkdir()
    for part in (ROOT / "finqa_cli").iterdir():
        if part.name != "settings":
            (product / part.name).symlink_to(part)
    shutil.copytree(ROOT / "finqa_cli" / "settings", product / "settings")
    schema = product / "settings" / "schema.py"
    source = schema.read_text(encoding="utf-8")
    assert source.count("    iterations: PositiveInt") == 1
    schema.write_text(source.replace("    iterations: PositiveInt", NEW), encoding="utf-8")
    variables = {"PYTHONPATH": f"{tmp_path}:{ROOT / 'plugins'}", "DUMMY_SHARE": "0.5", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", TRY],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        cwd=tmp_path,
        timeout=90,
    )
    assert done.returncode == 78, done.stderr
    assert re.search(r"--dummy-share <float> +Share of nothing\. +\[parts; default: 0\.5\]", done.stdout)
    assert re.search(r"train\.dummy_share +0\.5 +environment DUMMY_SHARE\n", done.stdout)
    names = "`train.dummy_share`<br>`--dummy-share`<br>`DUMMY_SHARE`"
    row = f"| {names} | Share of nothing, in parts<br>number, default `0.25` |"
    assert row in done.stdout
    assert "# Share of nothing, in parts.\n# DUMMY_SHARE=0.25\n" in done.stdout
    assert "train.dummy_share = 7.0 (flag)" in done.stderr
