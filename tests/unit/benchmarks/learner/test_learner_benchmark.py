"""The benchmark of the learner measures equal updates, and would notice what it looks for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from benchmarks.figures import Figure
from benchmarks.learner import against_trl, against_turns, budgets
from benchmarks.learner.child import measure as measured_here
from benchmarks.learner.jobs import Job, Measured, ModelSize, Preparation, ProcessFailed, measure, run_json
from benchmarks.learner.memory import LargestTensor, resident_mib
from benchmarks.learner.models import prepare
from benchmarks.learner.published import PerTurnUpdate, turn_sequences
from benchmarks.learner.shapes import Shape, episodes, turns_of

SHAPE = Shape(prompt=40, turns=3, sampled=5, tool=7, group=4, vocabulary=90)
SIZE = ModelSize(vocabulary=90, hidden=32, layers=2, heads=2, key_value_heads=1, feed_forward=48)
COUNT = 8


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    prepare(Preparation(folder=folder, model=SIZE, shape=SHAPE, scored=COUNT))
    return folder


@pytest.fixture(autouse=True)
def weights_of_others() -> Iterator[None]:
    """Models are initialised from the generator of the process."""
    with torch.random.fork_rng(devices=[]):
        yield


def job(start: Path, gradient: Path | None = None) -> Job:
    return Job(start=start, shape=SHAPE, episodes=COUNT, token_budget=160, rows=3, warm_up=4, gradient=gradient)


def test_both_forms_have_the_same_gradient(start: Path, tmp_path: Path) -> None:
    ours, published = tmp_path / "ours.safetensors", tmp_path / "published.safetensors"
    whole = measured_here(job(start, ours))
    turns = measured_here(replace(job(start, published), form="per turn"))
    overall, worst = against_turns.gradient_difference(ours, published)
    assert overall <= worst <= 1e-4
    assert overall <= against_turns.SAME_GRADIENT
    assert whole.grad_norm == pytest.approx(turns.grad_norm, rel=1e-4)
    assert (whole.tokens, turns.tokens) == (COUNT * 69, COUNT * (45 + 57 + 69))


def test_packed_and_padded_rows_of_windows_have_the_same_gradient(tmp_path: Path) -> None:
    prepare(Preparation(folder=tmp_path, model=replace(SIZE, window=16), shape=SHAPE, scored=COUNT))
    packed, padded = (tmp_path / f"{packing}.safetensors" for packing in ("packed", "padded"))
    measured_here(job(tmp_path, packed))
    measured_here(replace(job(tmp_path, padded), packing="off"))
    assert against_turns.gradient_difference(packed, padded)[0] <= against_turns.SAME_GRADIENT


def test_another_gradient_is_found(start: Path, tmp_path: Path) -> None:
    ours, other = tmp_path / "ours.safetensors", tmp_path / "other.safetensors"
    measured_here(job(start, ours))
    measured_here(replace(job(start, other), form="per turn", episodes=4))
    assert against_turns.gradient_difference(ours, other)[0] > against_turns.SAME_GRADIENT


@pytest.mark.slow
def test_a_process_of_its_own_gives_the_same_numbers(start: Path) -> None:
    here = measured_here(job(start))
    there = measure(job(start), threads=torch.get_num_threads())
    assert (there.tokens, there.loss) == (here.tokens, pytest.approx(here.loss, abs=1e-6))
    assert there.grad_norm == pytest.approx(here.grad_norm, rel=1e-5)
    assert len(there.seconds) == len(there.cpu_seconds) == 1
    assert there.peak_rss_mib >= there.rss_before_mib > 0


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(ProcessFailed, match="no such trainer"):
        run_json([sys.executable, "-c", "raise SystemExit('no such trainer')"], threads=1)


def test_logits_of_all_tokens_are_noticed(start: Path) -> None:
    ours = measured_here(replace(job(start), watch=True, rows=COUNT, token_budget=COUNT * 69))
    form = PerTurnUpdate(start, checkpointing=False)
    with LargestTensor() as largest:
        form.accumulate(episodes(SHAPE, COUNT), rows=COUNT)
    assert largest.elements >= COUNT * 69 * SIZE.vocabulary > ours.largest > 0


def test_the_largest_tensor_of_a_backward_pass_is_noticed() -> None:
    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(context: object, row: torch.Tensor) -> torch.Tensor:
            return row.clone()

        @staticmethod
        def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
            return torch.outer(gradient, gradient).sum(dim=0)

    row = torch.ones(50, requires_grad=True)
    with LargestTensor() as largest:
        Outer.apply(row).sum().backward()
    assert largest.shape == (50, 50)


def test_the_most_that_was_held_is_at_least_what_is_held() -> None:
    assert resident_mib("VmHWM") >= resident_mib() > 10


@given(turns=st.integers(1, 4), sampled=st.integers(1, 6), tool=st.integers(1, 5), prompt=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_every_sampled_token_is_trained_on_once_in_both_forms(turns: int, sampled: int, tool: int, prompt: int) -> None:
    shape = Shape(prompt=prompt, turns=turns, sampled=sampled, tool=tool, group=2, vocabulary=50)
    found = episodes(shape, 4)
    for sample in found:
        parts = turns_of(sample)
        assert len(parts) == turns
        assert all(tuple(sample.token_ids[: len(before)]) == before for before, _ in parts)
        completions = [token for _, completion in parts for token in completion]
        assert completions == [
            token for token, masked in zip(sample.token_ids, sample.loss_mask, strict=True) if masked
        ]
    sequences = turn_sequences(found)
    assert sum(turn.scale * (len(turn.ids) - turn.prompt) for turn in sequences) == pytest.approx(1.0)


def test_a_group_shares_its_prompt_and_more_episodes_begin_alike() -> None:
    few, more = episodes(SHAPE, 4), episodes(SHAPE, 8)
    assert [sample.token_ids.tolist() for sample in more[:4]] == [sample.token_ids.tolist() for sample in few]
    assert [list(sample.advantages) for sample in more[:4]] == [list(sample.advantages) for sample in few]
    assert len({tuple(sample.token_ids[: SHAPE.prompt]) for sample in more}) == 2
    assert sum(sample.advantages[-1] for sample in more) == 0
    with pytest.raises(ValueError, match="whole groups"):
        episodes(SHAPE, 6)


def test_memory_that_grows_with_the_episodes_fails() -> None:
    good = {(1000, 64): 10.0, (1000, 256): 10.5, (4000, 64): 38.0, (4000, 256): 40.0}
    assert verdicts(budgets.judged(good)) == [True, True]
    assert verdicts(budgets.judged(good | {(1000, 256): 14.0})) == [False, True]
    assert verdicts(budgets.judged(good | {(4000, 64): 12.0, (4000, 256): 12.0})) == [True, False]


def test_an_update_slower_or_heavier_than_that_of_trl_fails() -> None:
    def run(seconds: float, memory: float, norm: float = 1.0) -> list[Measured]:
        return [
            Measured(
                seconds=[seconds] * 3,
                cpu_seconds=[seconds] * 3,
                peak_rss_mib=memory + 300,
                rss_before_mib=300,
                tokens=10,
                loss=0.0,
                grad_norm=norm,
            )
        ]

    found = {against_trl.TRL: run(12, 400), against_trl.OURS: run(5, 200), against_trl.ALIKE: run(9, 300)}
    assert all(verdicts(against_trl.judged(found)))
    for name in (against_trl.OURS, against_trl.ALIKE):
        assert verdicts(against_trl.judged(found | {name: run(11, 200)})).count(False) == 2
        assert verdicts(against_trl.judged(found | {name: run(5, 500)})).count(False) == 1
    assert not all(verdicts(against_trl.judged(found | {against_trl.OURS: run(5, 200, norm=1.1)})))


def test_the_other_trainer_is_given_the_same_rollouts() -> None:
    shape = replace(SHAPE, turns=1)
    samples = episodes(shape, COUNT)
    batch = against_trl.trl_batch(samples, shape.group)
    assert len(batch["prompts"]) == 2
    whole = [batch["prompts"][row // 4] + ids for row, ids in enumerate(batch["completions"])]
    assert [list(ids) for ids in whole] == [sample.token_ids.tolist() for sample in samples]
    assert batch["rewards"] == [sample.advantages[-1] for sample in samples]


def test_without_an_interpreter_trl_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINQA_TRL_PYTHON", str(tmp_path / "none"))
    assert against_trl.trl_python(None) is None
    interpreter = tmp_path / "python"
    interpreter.touch()
    assert against_trl.trl_python(interpreter) == interpreter
    monkeypatch.setenv("FINQA_TRL_PYTHON", str(interpreter))
    assert against_trl.trl_python(None) == interpreter


def verdicts(figures: list[Figure]) -> list[bool]:
    """Of those that have a limit."""
    return [figure.passed for figure in figures if figure.limit]
