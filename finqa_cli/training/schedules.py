"""The learning rate over the planned steps of a run."""

from __future__ import annotations

from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.settings import Settings, TrainSettings
from finqa_cli.types import Passes

_OF_THE_LEARNER = ("schedule", "warmup_steps", "total_steps")


def is_scheduled(train: TrainSettings) -> bool:
    """True when the rate depends on how many steps are planned."""
    return train.schedule != "constant" or train.warmup_share > 0


def scheduled(settings: Settings, passes: Passes) -> Settings:
    """The settings with the learner's options that make `train.schedule` and `train.warmup_share` true.

    Planned are all steps of all iterations. Where a step is skipped, the rate stays where it is.

    Raises:
        ConfigError: The learner's own options name a schedule as well.
    """
    train, learner = settings.train, settings.learner
    if not is_scheduled(train):
        return settings
    if twice := sorted(set(_OF_THE_LEARNER) & set(learner.options)):
        named = ", ".join(f"learner.options.{option}" for option in twice)
        raise ConfigError(
            f"train.schedule and train.warmup_share say how the learning rate goes, and so does {named}.",
            remedy="keep train.schedule and train.warmup_share, which count the steps themselves",
        )
    steps = train.iterations * passes.epochs * passes.minibatches
    return _with_options(settings, {**learner.options, **_plan(train.schedule, train.warmup_share, steps)})


def over_steps(settings: Settings, schedule: str, *, warmup_share: float, steps: int) -> Settings:
    """The settings of training on a file; the learner's own options win over the schedule.

    The learner works at temperature 1, for these losses are of the model's own distribution.
    """
    planned = _with_options(settings, {**_plan(schedule, warmup_share, steps), **settings.learner.options})
    generation = settings.generation.model_copy(update={"temperature": 1.0})
    return planned.model_copy(update={"generation": generation})


def _plan(schedule: str, warmup_share: float, steps: int) -> dict[str, Any]:
    """Options of the learner."""
    warmup = min(steps - 1, round(warmup_share * steps))
    return dict(zip(_OF_THE_LEARNER, (schedule, warmup, steps), strict=True))


def _with_options(settings: Settings, options: dict[str, Any]) -> Settings:
    return settings.model_copy(update={"learner": settings.learner.model_copy(update={"options": options})})
