"""The control of a training run, the same run on shuffled rewards: its part of a report, and whether it is valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.publishing.report.report_data import curves, flatten
from finqa_cli.publishing.report.report_progress import progress_document
from finqa_cli.publishing.report.report_records import RunRecords
from finqa_cli.settings import PLACED

SHUFFLED = "train.shuffle_rewards"

_SECTIONS = (
    *("environment", "engine", "optimizer", "reward", "learner", "codec", "model", "lora"),
    *("generation", "train", "eval"),
)
_OF_DATA = ("train_split", "eval_split", "max_prompt_tokens")
_FREE = frozenset(
    (
        *(SHUFFLED, "train.iterations", "train.eval_every", "train.checkpoint_every", "train.keep_checkpoints"),
        *("train.preflight", "train.sync_wait_s", "engine.options.threads", "learner.options.threads", *PLACED),
    )
)
"""Settings that may differ between a run and its control: apart from the shuffling of the rewards, none changes
what an iteration does.
"""


def control_document(control: RunRecords) -> dict[str, Any]:
    """Returns what a report shows of a control: its name, its curves, and its evaluations before and after training."""
    return {
        "label": control.path.resolve().name,
        "curves": curves(control),
        "progress": progress_document(control),
    }


def check_control(run: RunRecords, control: RunRecords) -> None:
    """Checks that a run is the control of another: the same training run, except for shuffled rewards and its length.

    Raises:
        UsageError: They are the same run, or one of them is not a training run.
        ConfigError: The control did not shuffle its rewards, the run did, or the control was trained in another way.
    """
    if run.path.resolve() == control.path.resolve():
        raise UsageError(f"{run.path} cannot be its own control.", remedy=f"finqa report {run.path}")
    for each in (run, control):
        if each.facts.get("command") != "train":
            raise UsageError(
                f"{each.path} is a run of finqa {each.facts.get('command', 'eval')}; a control must be a training run.",
                remedy=f"finqa report {run.path}, or name two training runs",
            )
    if _shuffled(run):
        others = f"finqa report {control.path} --control {run.path}"
        raise ConfigError(
            f"{run.path} is itself a control: it shuffled its rewards ({SHUFFLED}).",
            remedy=f"finqa report {run.path}" if _shuffled(control) else others,
        )
    if not _shuffled(control):
        raise ConfigError(
            f"{control.path} is not a control: it was trained on the true rewards ({SHUFFLED} is false).",
            remedy=f"train it with --shuffle-rewards, or finqa report {run.path} {control.path}",
        )
    if differing := _differences(run, control):
        named = "; ".join(f"{name} is {own} and {other}" for name, own, other in differing[:4])
        more = f"; and {len(differing) - 4} more" if len(differing) > 4 else ""
        raise ConfigError(
            f"{control.path} is not a control of {run.path}, because other settings differ too: {named}{more}.",
            remedy=f"train it with the settings of {run.path} and --shuffle-rewards, or "
            f"finqa report {run.path} {control.path}",
        )


def _shuffled(records: RunRecords) -> bool:
    return bool(records.settings.get("train", {}).get("shuffle_rewards"))


def _differences(run: RunRecords, control: RunRecords) -> list[tuple[str, Any, Any]]:
    """Returns the name and both values of each setting and each recorded input that differs."""
    own, other = _compared(run), _compared(control)
    return [
        (name, own.get(name, "not set"), other.get(name, "not set"))
        for name in sorted(own.keys() | other.keys())
        if own.get(name) != other.get(name)
    ]


def _compared(records: RunRecords) -> Mapping[str, Any]:
    """Returns what the results of a run depend on: settings other than `_FREE`, and digests of data and reward."""
    data = records.settings.get("data", {})
    chosen = {name: records.settings.get(name, {}) for name in _SECTIONS}
    chosen["data"] = {name: data[name] for name in _OF_DATA if name in data}
    named = ((name, value) for name, value in flatten(chosen) if name not in _FREE)
    # `flatten` writes `none` for empty options, which are equal to absent ones
    settings = {name: value for name, value in named if value != "none"}
    digests = {name: value for name, value in records.facts.items() if str(name).endswith(" digest")}
    return {**settings, **digests}
