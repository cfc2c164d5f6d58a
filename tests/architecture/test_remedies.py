"""Every remedy of the product is one that can be followed: what it names exists, and it deletes and hides nothing.

A remedy is the `remedy=` or `fix=` of an error, a check or a log line. `remedy_sites.py` finds them all in the source,
so a new one is held to these rules without being listed anywhere. tests/remedies executes
them, and test_remedy_coverage.py counts those that nothing executes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from remedy_sites import all_texts, remedies
from remedy_texts import (
    FOREIGN,
    OPTION,
    SETTING,
    alternatives,
    commands,
    mentions,
    refusal,
    unknown_options,
    unknown_settings,
    unknown_variables,
)
from source_tree import ROOT

NOT_FOLLOWED = {
    "finqa_cli/boundary.py": "remedies of plugins' explain_error; those of finqa are sites of their own plugins",
    "finqa_cli/diagnostics/diagnose.py": "remedies of checks and errors, with secrets masked",
    "finqa_cli/runs/interrupts.py": "the resume commands that commands give to perform()",
    "finqa_cli/settings/published_names.py": "names of other trainers in a table; tests/unit/settings tries each",
    "finqa_cli/settings/secret_values.py": "the variable of the option; test_secrets_everywhere.py tries them",
    "plugins/finqa_plugins/engines/vllm/machine.py": "the remedy of the error that the plan raised",
    "plugins/finqa_plugins/sandboxes/daytona/daytona_images.py": "Recipe.command, made by build_command",
    "plugins/finqa_plugins/sandboxes/docker/docker_images.py": "Recipe.command, made by build_command",
}
"""Files with a remedy whose texts cannot be worked out from the source, and where they come from."""

ADVICE = re.compile(
    r"(accept|add|another|ask|change|check|choose|compare|copy|correct|create|divide|edit|evaluate|fix|free|give|install|keep|label|"
    r"leave|lower|look|make|more|move|name|pass|play|put|read|remove|report|restore|resume|run|save|say|see|set|start|take|"
    r"teach|tell|train|use|wait|write)\b",
    re.IGNORECASE,
)
"""First words of a remedy that says in words what to do."""

NOUNS = re.compile(
    r"^(an? |one of:|the same command|the format is|letters|fewer|less|demonstrations|https://|\{|--\{|finqa \{)"
)
"""Beginnings of a remedy that names what to give instead."""

DESTRUCTIVE = re.compile(
    r"\brm\b|\bkill\b|--force\b|--overwrite\b|--recreate\b|--all\b|\breap\b|\bdelete\b|uninstall|^mv\b|--upgrade|"
    r"--force-reinstall"
)
HARMLESS = {
    "--out DIR, or --overwrite": "the second choice: a new folder is named first",
    "finqa sandbox reap": "ends sandboxes whose run is over; data is in none of them",
    "finqa setup vllm --recreate": "a virtual environment, made again of the packages that are pinned",
    "with --recreate it starts from scratch": "a virtual environment of `finqa setup`, as the second choice",
    "first finqa snapshot delete": "images only, made again of the snapshot, which stays on this machine",
    "or give --force": "the second choice: another file is named first",
    "or stop it: kill": "the second choice: a step of the user's own pipeline, which resumes",
    "create a key that may write and delete": "what a key is allowed to do",
    "mv {file} {file}.changed": "renames, deletes nothing",
    "mv {folder} {folder}.aside": "renames, deletes nothing",
    "mv {run} {": "puts a folder back where its run began",
    ".unused')}": "renames, deletes nothing",
    ", if it is a test split, and use --final-test with that name": "renames, deletes nothing",
    "pip install --force-reinstall torch": "a package",
    "pip install --force-reinstall --no-deps WHEEL": "a package, made again of the controller's wheel",
    "pip install --upgrade {source}": "a plugin's package",
}
"""Parts of remedies that end, replace or rename something, and why nothing is lost."""

HIDING = re.compile(
    r"(?<!leave out )(--skip-bad|skip_bad=true|--past-gates|--no-preflight|--allow-[a-z-]+|--dangerously-[a-z-]+)"
)
"""What a user may say to go on in spite of a fault: never the first thing that a remedy names."""


def texts() -> list[tuple[str, str]]:
    return sorted({(site.place, text) for site in remedies() for text in site.texts})


def wrong(find: Callable[[str], Iterator[str]]) -> list[str]:
    """Return place, finding and text of everything that `find` finds."""
    return [f"{place}: {found}: {text}" for place, text in texts() for found in find(text)]


def test_all_remedies_are_found() -> None:
    sites = remedies()
    assert len(sites) > 700 and sum(bool(site.texts) for site in sites) > 700
    unknown = {site.place.partition(":")[0]: site.problem for site in sites if site.problem}
    assert unknown.keys() == NOT_FOLLOWED.keys(), unknown


def test_each_says_what_to_do() -> None:
    def vague(text: str) -> Iterator[str]:
        known = commands(text) or OPTION.search(text) or SETTING.search(text) or FOREIGN.search(text)
        if not (known or ADVICE.match(text) or NOUNS.match(text)):
            yield "no command, option, setting or advice"

    assert not wrong(vague)


def test_every_command_of_a_remedy_is_one() -> None:
    def refused(text: str) -> Iterator[str]:
        yield from (reason for command in commands(text) if (reason := refusal(command)))
        yield from (reason for command in mentions(text) if (reason := refusal(command, whole=False)))

    assert not wrong(refused)


def test_options_settings_variables_and_pages_exist() -> None:
    def unknown(text: str) -> Iterator[str]:
        yield from (*unknown_options(text), *unknown_settings(text), *unknown_variables(text))
        yield from (page for page in re.findall(r"docs/[\w/-]+\.md", text) if not (ROOT / page).is_file())

    assert not wrong(unknown)


def test_commands_in_other_texts_exist() -> None:
    named = [(place, each) for place, text in all_texts() for each in (*commands(text), *mentions(text))]
    shell = re.compile(r"[|<>]|FORM|\w\{\}|train \{\} --")  # pipes, choices, and flags as one placeholder
    found = {(place, each, refusal(each, whole=False)) for place, each in named if not shell.search(each)}
    assert not [f"{place}: {reason}: finqa {each}" for place, each, reason in found if reason]


def test_none_deletes_or_replaces_anything() -> None:
    used = set()

    def losing(text: str) -> Iterator[str]:
        reasons = [part for part in HARMLESS if part in text]
        used.update(reasons)
        if DESTRUCTIVE.search(text) and not reasons:
            yield "deletes or replaces"

    assert not wrong(losing)
    assert used == HARMLESS.keys(), "exceptions that no remedy needs"


def test_none_begins_with_hiding_the_fault() -> None:
    assert not wrong(lambda text: iter(HIDING.findall(alternatives(text)[0])))


def test_none_invents_data_or_gives_it_the_name_of_other_data() -> None:
    def inventing(text: str) -> Iterator[str]:
        for command in commands(text):
            named, own = "--snapshot-name" in command, "--data" in command or "--sandbox" in command
            if command.startswith("data generate") or (command.startswith("snapshot build") and named and not own):
                yield command

    assert not wrong(inventing)


def test_none_installs_a_package_of_our_name_from_an_index() -> None:
    own = re.compile(r"pip install (--upgrade|--force-reinstall) '?finqa\b(?!-)")
    assert not wrong(lambda text: (found[0] for found in own.finditer(text)))


def test_none_is_a_pipe_of_the_shell() -> None:
    assert not wrong(lambda text: (each for each in commands(text) if "|" in each))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("evaluate scripted", "No such command"),
        ("report", "Missing argument"),
        ("eval {} --no-such-option", "No such option"),
        ("data import nothing", "No such command"),
        ("export {} --to nothing", "is not one of"),
    ],
)
def test_a_command_that_does_not_exist_is_noticed(command: str, reason: str) -> None:
    assert reason in refusal(command)


def test_names_that_do_not_exist_are_noticed() -> None:
    assert unknown_options("--no-such-option, or --limit 3") == ["--no-such-option"]
    assert unknown_settings("--set train.no_such=1 or --set train.group_size=2") == ["train.no_such"]
    assert unknown_settings("--set engine.options.no_such=1, sandbox.options.cpu=1") == ["engine.options.no_such"]
    assert unknown_variables("set FINQA_NO_SUCH or FINQA_HOME") == ["FINQA_NO_SUCH"]
    assert commands("finqa sandbox ls shows what is left; finqa eval embedded, and so on (finqa doctor)") == [
        "sandbox ls",
        "eval embedded",
        "doctor",
    ]
    assert HIDING.findall(alternatives("correct them, or --skip-bad, which skips them")[0]) == []
