"""What can be found wrong with a pipeline or experiment before its first step, instead of hours later by a step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.evaluation.compare.comparability import flat
from finqa_cli.evaluation.compare.comparison import label_and_path
from finqa_cli.evaluation.compare.evaluated_runs import load_run
from finqa_cli.experiments.pipeline_spec import PipelineSpec, differences
from finqa_cli.experiments.step_records import Owner, read_facts
from finqa_cli.extend import registry
from finqa_cli.masking import is_secret
from finqa_cli.runs.durable_files import read_document, write_json
from finqa_cli.settings import ENVIRONMENT, Choice, Settings, load_settings, to_public_dict
from finqa_cli.training.rl.rl_run import check_method
from finqa_cli.wiring.policies import resolve

_MOST = 10
"""Differences that a message shows."""


def check_spec(spec: PipelineSpec) -> None:
    """Looks at everything that later steps will insist on and that is there already.

    Raises:
        ConfigError: A component or an option is unknown, the method does not go with the settings, or there is no such
            model or specification.
        DataError: A run to compare with cannot be compared, or the run of the first policy is damaged.
        UsageError: A run to compare with is not named.
    """
    for settings in (spec.imitation, spec.training):
        check_options(settings)
    if spec.method != "dpo":
        check_method(spec.training)
    if not spec.init:
        resolve(spec.imitation.model.name)
    elif not Path(spec.init).is_file():
        raise ConfigError(f"There is no model specification at {spec.init}.", remedy="finqa config list")
    for named in spec.compare_with:
        load_run(label_and_path(named)[1])


def check_recorded(run: Path, wanted: Mapping[str, Any], owner: Owner) -> None:
    """Compares what is asked for with what is in the folder already, if something is.

    Raises:
        ConfigError: It was asked for something else, which the message tells; or something else is in the folder.
    """
    if (facts := read_facts(run, owner)) is None:
        return
    if differing := differences(facts["parameters"], wanted):
        shown = "; ".join(differing[:_MOST]) + ("; ..." if len(differing) > _MOST else "")
        article = "an" if owner.command.startswith("e") else "a"
        raise ConfigError(
            f"{run} holds {article} {owner.command} of another configuration; nothing was changed. {shown}.",
            remedy=f"another --output, or {owner.resume} {run} to go on with its own",
        )


def write_settings(file: Path, settings: Mapping[str, Any], owner: Owner) -> None:
    """Writes a settings file that steps read, where it is not there yet.

    Raises:
        ConfigError: It is there and says something else.
    """
    wanted = json.loads(json.dumps(settings))
    if not file.exists():
        write_json(file, wanted)
    elif differing := differences(wanted, read_document(file)):
        raise ConfigError(
            f"{file} was changed since the {owner.command} began. {'; '.join(differing)}.",
            remedy=f"rm {file}, and it is written again; other settings are another --output",
        )


def check_variables(*files: Path) -> None:
    """Looks whether environment variables or .env say something else than these settings files: they would win.

    Raises:
        ConfigError: They do; the message shows what differs.
    """
    for file in files:
        loaded, stated = load_settings(files=[file]), flat(read_document(file))
        found = flat(to_public_dict(loaded.settings))
        differing = {
            origin.rpartition(" ")[2]: f"{path}: {stated.get(path, 'unset')}, now {found.get(path)} by {origin}"
            for path, origin in loaded.origins.items()
            if origin.startswith(("environment", ".env")) and found.get(path) != stated.get(path)
            if not is_secret(path.rpartition(".")[2])
        }
        if differing:
            raise ConfigError(
                f"The steps would not run with the settings of {file}. {'; '.join(differing.values())}.",
                remedy=f"unset {' '.join(differing)} (.env counts too); other settings are another --output",
            )


def check_options(settings: Settings) -> None:
    """Raises ConfigError where a component of the settings is unknown, or does not take its options."""
    named = {name: value for name, value in settings if isinstance(value, Choice)}
    if settings.reward.name == ENVIRONMENT:
        del named["reward"]  # no component
    choices = [*named.items(), *(("tracker", choice) for choice in settings.trackers)]
    for kind, choice in choices:
        registry().config(registry().find(kind, choice.name), choice.options)
