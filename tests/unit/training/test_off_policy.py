from __future__ import annotations

import itertools
from typing import Any

import pytest
from fixtures.typed_losses import typed
from pydantic import ValidationError

from finqa_cli.algorithms.losses import CrossEntropyLoss, OffPolicy, PolicyGradientLoss
from finqa_cli.errors import ConfigError
from finqa_cli.settings import TrainSettings
from finqa_cli.training.rl.updates import correct_off_policy
from finqa_cli.types import Loss

CLIPPED = PolicyGradientLoss(clip_low=0.2, clip_high=0.3)
CROSS_ENTROPY = CrossEntropyLoss()


def capped(**caps: float) -> Loss:
    return typed("policy_gradient", clip_low=0.2, clip_high=0.3, **caps)


@pytest.mark.parametrize("max_staleness", [0, 2])
@pytest.mark.parametrize(
    ("mode", "own", "set_to"),
    [
        ("auto", {"token_cap": 2.0}, {"token_cap": 3.0}),
        ("none", {}, {}),
        ("token", {"token_cap": 2.0}, {"token_cap": 3.0}),
        ("sequence", {"sequence_cap": 2.0}, {"sequence_cap": 3.0}),
        ("icepop", {"icepop_floor": 0.5, "icepop_cap": 5.0}, {"icepop_floor": 0.25, "icepop_cap": 3.0}),
        (
            "geometric",
            {"geometric_floor": 0.99, "geometric_cap": 1.01},
            {"geometric_floor": 0.25, "geometric_cap": 3.0},
        ),
    ],
)
def test_the_mode_decides_which_bounds_the_loss_gets(
    mode: OffPolicy, max_staleness: int, own: dict[str, float], set_to: dict[str, float]
) -> None:
    """As published where none is set; at every staleness, for engines round differently from the learner as well."""
    found = correct_off_policy(CLIPPED, mode=mode, max_staleness=max_staleness)
    assert found == capped(**own)
    assert (found.off_policy != "none") is (mode != "none")
    assert correct_off_policy(CLIPPED, mode=mode, max_staleness=max_staleness, cap=3.0, floor=0.25) == capped(**set_to)


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_a_loss_without_a_ratio_is_left_unchanged_where_nothing_is_stale(mode: OffPolicy) -> None:
    assert correct_off_policy(CROSS_ENTROPY, mode=mode, max_staleness=0) is CROSS_ENTROPY
    assert CLIPPED.has_ratio and not CROSS_ENTROPY.has_ratio


@pytest.mark.parametrize(
    ("mode", "max_staleness"), [("none", 1), *itertools.product(("token", "sequence", "icepop", "geometric"), (0, 1))]
)
def test_a_loss_that_knows_no_sampler_cannot_be_corrected(mode: OffPolicy, max_staleness: int) -> None:
    with pytest.raises(ConfigError, match=f"off_policy={mode} .* CrossEntropyLoss") as error:
        correct_off_policy(CROSS_ENTROPY, mode=mode, max_staleness=max_staleness)
    assert error.value.remedy == "--max-staleness 0 --set train.off_policy=auto"


def test_stale_tokens_are_not_trained_on_uncorrected() -> None:
    with pytest.raises(ConfigError, match=r"max_staleness 1.*without a correction") as error:
        correct_off_policy(CROSS_ENTROPY, mode="auto", max_staleness=1)
    assert error.value.remedy == "--max-staleness 0"


def test_an_optimizer_with_a_correction_of_its_own_keeps_it() -> None:
    own = capped(sequence_cap=5.0)
    assert correct_off_policy(own, mode="auto", max_staleness=3) is own
    for mode in ("none", "token", "sequence"):
        with pytest.raises(ConfigError, match="has its own correction"):
            correct_off_policy(own, mode=mode, max_staleness=3)


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ({"off_policy": "none", "off_policy_cap": 3.0}, "off_policy_cap has no effect with off_policy=none"),
        ({"off_policy_floor": 0.5}, "off_policy_floor has no effect with off_policy=auto"),
        (
            {"off_policy": "sequence", "off_policy_floor": 0.5},
            "off_policy_floor has no effect with off_policy=sequence",
        ),
    ],
)
def test_bounds_that_the_mode_does_not_have_are_refused(train: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        TrainSettings(**train)
    TrainSettings(off_policy="icepop", off_policy_floor=0.3, off_policy_cap=3.0)
