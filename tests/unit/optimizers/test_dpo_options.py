from __future__ import annotations

import pytest
from fixtures.graded_groups import graded_group
from pydantic import ValidationError

from finqa_cli.algorithms.pair_batches import PreferenceLoss
from finqa_cli.contracts import PreferenceOptimizer
from finqa_plugins.optimizers.recorded_methods import Dpo, DpoConfig


def test_each_loss_is_named_with_its_numbers() -> None:
    assert Dpo(DpoConfig()).pair_loss() == PreferenceLoss(form="sigmoid", beta=0.1)
    smooth = DpoConfig(label_smoothing=0.2, reference_free=True, beta=0.3)
    assert Dpo(smooth).pair_loss() == PreferenceLoss(beta=0.3, label_smoothing=0.2, reference_free=True)
    assert Dpo(DpoConfig(loss_type="hinge")).pair_loss().form == "hinge"
    assert Dpo(DpoConfig(loss_type="ipo")).pair_loss().form == "ipo"
    assert isinstance(Dpo(DpoConfig()), PreferenceOptimizer)
    assert Dpo(DpoConfig(epochs=2, pairs_per_step=3)).plan().epochs == 2


@pytest.mark.parametrize(
    "options",
    [{"beta": 0}, {"label_smoothing": 0.5}, {"label_smoothing": 0.1, "loss_type": "ipo"}, {"loss_type": "kto"}],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DpoConfig.model_validate(options)


def test_groups_are_not_for_it() -> None:
    method = Dpo(DpoConfig())
    for ask in (method.loss, lambda: method.credit(graded_group(0.0, 1.0))):
        with pytest.raises(NotImplementedError):
            ask()
