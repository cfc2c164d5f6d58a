"""Which options ask for something that cannot happen under the settings."""

from __future__ import annotations

from collections.abc import Mapping

from finqa_cli.types import IdleOption, LossSpec
from finqa_plugins.optimizers.clip_options import PolicyGradientOptions

_ONE_STEP = "with one optimizer step per iteration the ratio to the policy before it is exactly 1"


def idle_options(
    config: PolicyGradientOptions,
    loss: LossSpec,
    *,
    steps: int,
    more_steps: str,
    form: Mapping[str, str] | None = None,
    target_kl: float = 0.0,
) -> tuple[IdleOption, ...]:
    """The options that no gradient depends on; those that are off, such as a clip of 0, ask for nothing.

    Clips are options of the same name as the parameters of the loss, so `LossSpec.effective` decides on them.

    Args:
        config: The options.
        loss: That they make.
        steps: Optimizer steps of an iteration.
        more_steps: Flags that bring several.
        form: Option -> reason, for those that say whose ratio it is; idle where the loss is not `policy_gradient`
            but becomes that.
        target_kl: Where further steps of an iteration are skipped.
    """
    effective = loss.effective(steps)
    found = [
        IdleOption(name=name, reason=_ONE_STEP, remedy=more_steps)
        for name, number in loss.parameters.items()
        if number and name not in effective.parameters
    ]
    if effective.name != loss.name:
        found += [
            IdleOption(name=name, reason=f"{_ONE_STEP}{reason}", remedy=more_steps)
            for name, reason in (form or {}).items()
        ]
    if target_kl and steps == 1:
        reason = "with one optimizer step per iteration there is none left to skip"
        found.append(IdleOption(name="target_kl", reason=reason, remedy=more_steps))
    if config.kl == "off":
        found += [
            IdleOption(name=name, reason="kl is off", remedy="--set optimizer.options.kl=loss")
            for name in ("kl_coef", "kl_estimator")
            if name in config.model_fields_set
        ]
    return tuple(found)
