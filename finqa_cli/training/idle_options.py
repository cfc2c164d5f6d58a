"""Options of the optimizer that have no effect: an error where the user named them, a line elsewhere."""

from __future__ import annotations

from finqa_cli.errors import ConfigError
from finqa_cli.settings import Loaded, is_shipped
from finqa_cli.training.rl.updates import training_passes
from finqa_cli.types import IdleOption
from finqa_cli.wiring.build import make_optimizer

_CHOSEN_FOR_THE_USER = ("default", "profile", "auto", "plan")


def check_idle_options(loaded: Loaded) -> str:
    """Looks which options of the optimizer no gradient depends on under the settings.

    Returns:
        One line that names those of presets and shipped files, and defaults beside options that are set; empty where
        there are none, or where nothing about the method was chosen.

    Raises:
        ConfigError: The user named one, by a flag, a file, a variable or `--set`; or an option is wrong.
    """
    optimizer = make_optimizer(loaded.settings)
    passes = training_passes(optimizer, loaded.settings.train)
    idle = optimizer.idle_options(passes.epochs * passes.minibatches)
    named = [(option, origin) for option in idle if _names(origin := _origin(loaded, option))]
    if named:
        options = loaded.settings.optimizer.options
        given = ", ".join(f"{_path(one)}={options[one.name]} ({origin})" for one, origin in named)
        leave = " and ".join(one.name for one, _ in named)
        raise ConfigError(
            f"{given} would have no effect: {_reasons([one for one, _ in named])}.",
            remedy=f"{', '.join(dict.fromkeys(one.remedy for one, _ in named))}; or leave out {leave}",
        )
    chosen = any(path.startswith("optimizer.options.") for path in loaded.origins)
    if not (idle and chosen):
        return ""
    remedies = ", ".join(dict.fromkeys(one.remedy for one in idle))
    names = ", ".join(one.name for one in idle)
    return f"no effect: {loaded.settings.optimizer.name}'s {names} ({_reasons(idle)}; {remedies} changes that)"


def _names(origin: str) -> bool:
    return origin.partition(" ")[0] not in _CHOSEN_FOR_THE_USER and not is_shipped(origin)


def _origin(loaded: Loaded, option: IdleOption) -> str:
    return loaded.origins.get(_path(option), "default")


def _path(option: IdleOption) -> str:
    return f"optimizer.options.{option.name}"


def _reasons(options: list[IdleOption] | tuple[IdleOption, ...]) -> str:
    return "; ".join(dict.fromkeys(option.reason for option in options))
