"""The learning rate of a training run over its planned steps."""

from __future__ import annotations

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
    warmup = min(steps - 1, round(train.warmup_share * steps))
    values = dict(zip(_OF_THE_LEARNER, (train.schedule, warmup, steps), strict=True))
    options = {**learner.options, **values}
    return settings.model_copy(update={"learner": learner.model_copy(update={"options": options})})
