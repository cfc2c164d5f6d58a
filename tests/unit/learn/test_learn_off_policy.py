from __future__ import annotations

import pytest

from finqa_cli.errors import ConfigError
from finqa_cli.learn.off_policy import OffPolicy, corrected, is_decoupled, with_proximal
from finqa_cli.types import LossSpec, Sample

CLIPPED = LossSpec(name="policy_gradient", parameters={"clip_low": 0.2, "clip_high": 0.3})
CROSS_ENTROPY = LossSpec(name="cross_entropy")


def capped(**caps: float) -> LossSpec:
    return LossSpec(name="policy_gradient", parameters={**CLIPPED.parameters, **caps})


@pytest.mark.parametrize(
    ("mode", "max_staleness", "expected"),
    [
        ("auto", 0, CLIPPED),
        ("auto", 1, capped(token_cap=3.0)),
        ("clip", 0, CLIPPED),
        ("clip", 2, CLIPPED),
        ("token", 0, capped(token_cap=3.0)),
        ("token", 2, capped(token_cap=3.0)),
        ("sequence", 2, capped(sequence_cap=3.0)),
    ],
)
def test_the_mode_decides_which_cap_the_loss_gets(mode: OffPolicy, max_staleness: int, expected: LossSpec) -> None:
    assert corrected(CLIPPED, mode=mode, cap=3.0, max_staleness=max_staleness) == expected
    assert is_decoupled(expected) is (expected != CLIPPED)


def test_without_staleness_the_loss_is_the_very_object_that_the_optimizer_gave() -> None:
    for loss in (CLIPPED, CROSS_ENTROPY):
        assert corrected(loss, mode="auto", cap=2.0, max_staleness=0) is loss
        assert not is_decoupled(loss)


@pytest.mark.parametrize("mode", ["clip", "token", "sequence"])
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_loss_that_knows_no_sampler_cannot_be_corrected(mode: OffPolicy, max_staleness: int) -> None:
    with pytest.raises(ConfigError, match=f"off_policy={mode} .* loss 'cross_entropy'") as error:
        corrected(CROSS_ENTROPY, mode=mode, cap=2.0, max_staleness=max_staleness)
    assert error.value.remedy == "--max-staleness 0 --set train.off_policy=auto"


def test_stale_tokens_are_not_trained_on_uncorrected() -> None:
    with pytest.raises(ConfigError, match=r"max_staleness 1.*uncorrected") as error:
        corrected(CROSS_ENTROPY, mode="auto", cap=2.0, max_staleness=1)
    assert error.value.remedy == "--max-staleness 0"


def test_an_optimizer_with_a_correction_of_its_own_keeps_it() -> None:
    own = capped(sequence_cap=5.0)
    assert corrected(own, mode="auto", cap=2.0, max_staleness=3) is own
    for mode in ("clip", "token", "sequence"):
        with pytest.raises(ConfigError, match="correction of its own"):
            corrected(own, mode=mode, cap=2.0, max_staleness=3)


def test_a_cap_of_0_is_none() -> None:
    assert not is_decoupled(capped(token_cap=0.0, sequence_cap=0.0))


def test_proximal_logprobs_join_their_samples() -> None:
    samples = [
        Sample(token_ids=(1, token), loss_mask=(False, True), logprobs=(0.0, -1.0), advantages=(0.0, 1.0))
        for token in (2, 3)
    ]
    joined = with_proximal(samples, [(0.0, -2.0), (0.0, -3.0)])
    assert [sample.proximal_logprobs for sample in joined] == [(0.0, -2.0), (0.0, -3.0)]
    assert [sample.token_ids for sample in joined] == [(1, 2), (1, 3)]
    assert [sample.logprobs for sample in joined] == [(0.0, -1.0)] * 2
    with pytest.raises(ValueError, match="zip"):
        with_proximal(samples, [(0.0, -2.0)])
