"""The settings that each workflow offers by name: as flags of its command, and as keywords of its function."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from finqa_cli.settings.declarations import Declaration
from finqa_cli.settings.schema import DECLARATIONS

OF_PLAY = (
    *("environment", "engine", "sandbox", "reward", "pool", "data.snapshot", "data.path"),
    *("generation.max_steps", "generation.max_gen_tokens", "generation.engine_replicas", "run.dir", "train.seed"),
    *("run.max_cost", "run.max_tokens", "run.max_time_s", "run.tags"),
    *("generation.max_episode_tokens", "generation.max_episode_cost"),
)
"""Settings of every workflow that evaluates or samples a policy."""

OF_EVAL = (*OF_PLAY, "eval", "data.eval_split", "run.save_token_ids")

OF_TRAIN = (
    *("environment", "engine", "sandbox", "reward", "optimizer.name", "pool", "data", "model", "lora", "generation"),
    *("train", "eval.limit", "run", "cluster", "trackers"),
)

QUICK_EVAL = {"eval.limit": 16, "pool.sandboxes": 8}
"""Settings of a quick test of an evaluation, unless the user sets them."""

QUICK_TRAIN = {
    "pool.sandboxes": 8,
    "train.iterations": 2,
    "train.group_size": 4,
    "train.target_groups_per_iter": 4,
    "train.max_rollout_rounds": 4,
    "eval.limit": 16,
}
"""Settings of a quick test of a training run, unless the user sets them."""

QUICK_SAMPLE = {"pool.sandboxes": 8}
"""Settings of a quick test of sampling, unless the user sets them; see `candidates.QUICK` for the others."""


OPERATIONAL_OPTIONS = frozenset(
    f"engine.options.{name}"
    for name in (
        *("max_concurrent", "requests_per_minute", "tokens_per_minute", "max_retries", "backoff_s", "max_wait_s"),
        *("give_up_s", "connect_timeout_s", "request_timeout_s", "prices", "api_key_env"),
    )
)
"""Options of engines on servers that cannot change what a model answers."""


def is_operational(path: str) -> bool:
    """Return whether a setting cannot change results, so that it may change when a run is resumed.

    Args:
        path: Dotted path; members of an option's mapping count as the option.
    """
    declared = DECLARATIONS.get(path)
    return ".".join(path.split(".")[:3]) in OPERATIONAL_OPTIONS or (declared is not None and declared.about.resumable)


def offered_settings(settings: Sequence[str]) -> Iterator[Declaration]:
    """Yield the settings with a flag that are named by these paths or sections, in their order.

    Raises:
        LookupError: A path or section has no setting with a flag.
    """
    for wanted in settings:
        found = [
            each
            for path, each in DECLARATIONS.items()
            if each.about.flags and (path == wanted or path.startswith(f"{wanted}."))
        ]
        if not found:
            raise LookupError(f"No setting below {wanted} has a flag.")
        yield from found


def keywords_of(declaration: Declaration) -> tuple[str, ...]:
    """Return the keywords of a setting, one for each of its flags: `learning_rate` for `--learning-rate`."""
    flags = [flag.partition("/")[0] for flag in declaration.about.flags.split()]
    return tuple(flag.removeprefix("--").replace("-", "_") for flag in flags)


def without_given(counts: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Return the settings of a quick test that the user has not set."""
    return {path: count for path, count in counts.items() if path not in given}
