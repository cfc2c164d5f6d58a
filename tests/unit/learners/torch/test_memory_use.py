"""What bounds the memory of a step: tokens of a pass on a CPU, chunks of logits, recomputation only where needed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.tiny_learners import as_batch, gradient, make_learner, random_samples

from benchmarks.learner.memory import LargestTensor
from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.placement.known_models import known
from finqa_cli.types import Sample
from finqa_plugins import precision
from finqa_plugins.learners.torch import forward, memory_use
from finqa_plugins.learners.torch.memory_use import CPU_TOKENS, SHARE, tokens_at_once
from finqa_plugins.precision import auto_dtype
from finqa_testing.tiny_models import make_tiny_qwen3

CPU = torch.device("cpu")


def demonstrations(count: int, tokens: int) -> list[Sample]:
    rng = random.Random(0)
    row = np.ones(tokens, dtype=np.float32)
    return [
        Sample(
            token_ids=tuple(rng.randrange(300) for _ in range(tokens)),
            loss_mask=(False, *[True] * (tokens - 1)),
            logprobs=row,
            advantages=row,
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("vocabulary", [49_152, pytest.param(262_144, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}], ids=["float32", "bfloat16"])
def test_logits_of_a_large_vocabulary_exist_for_a_chunk_and_never_for_a_batch(
    tmp_path: Path, vocabulary: int, options: dict[str, Any]
) -> None:
    learner = make_learner(make_tiny_qwen3(tmp_path / "wide", vocab_size=vocabulary), options)
    samples = demonstrations(2, 600)
    with LargestTensor() as seen:
        learner.update(as_batch(samples), CrossEntropyLoss())
        learner.logprobs(samples)
        learner.reference_logprobs(samples)
    whole = sum(sample.loss_tokens for sample in samples) * vocabulary
    assert seen.elements <= forward._CPU_LOGITS_PER_CHUNK < whole / 3, seen.shape


def test_smaller_chunks_and_blocks_of_the_head_change_nothing_but_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(make_tiny_qwen3(tmp_path / "wide", vocab_size=40_000), {"dtype": "bfloat16"})
    batch = as_batch(random_samples(3))
    whole = gradient(learner, batch)
    monkeypatch.setattr(forward, "_CPU_LOGITS_PER_CHUNK", 40_000 * 5)
    monkeypatch.setattr(precision, "_HEAD_PER_BLOCK", 64 * 7_000)
    with LargestTensor() as seen:
        pieces = gradient(learner, batch)
    assert float((pieces - whole).norm() / whole.norm()) < 1e-2
    assert seen.elements <= max(40_000 * 5, 64 * 7_000)


def test_a_pass_on_a_cpu_is_bounded_for_models_that_are_not_small(
    learner_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tokens_at_once(CPU, known("Qwen/Qwen3-0.6B")) == CPU_TOKENS == tokens_at_once(CPU, None)
    assert tokens_at_once(torch.device("cuda"), known("Qwen/Qwen3-0.6B")) == 0
    samples = demonstrations(5, 700)
    passes: dict[str, list[int]] = {}
    updates: dict[str, Any] = {}
    for name, small in (("small", 10**9), ("large", 0)):
        monkeypatch.setattr(memory_use, "SMALL_MODEL", small)
        learner = make_learner(learner_model)
        passes[name] = []
        learner._causal.base_model.register_forward_pre_hook(
            lambda module, args, kwargs, found=passes[name]: found.append(kwargs["input_ids"].numel()),
            with_kwargs=True,
        )
        learner.logprobs(samples)
        updates[name] = learner.update(as_batch(samples), CrossEntropyLoss())
    assert max(passes["small"]) > CPU_TOKENS >= max(passes["large"]) and len(passes["large"]) == 6
    assert updates["large"].loss == pytest.approx(updates["small"].loss, rel=1e-5)
    assert updates["large"].grad_norm == pytest.approx(updates["small"].grad_norm, rel=1e-4)


def recomputing(learner: Any) -> bool:
    return any(getattr(part, "gradient_checkpointing", False) for part in learner._causal.modules())


def test_activations_are_recomputed_only_where_they_would_not_fit(
    learner_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(learner_model, gradient_checkpointing=None)
    need = learner._built.recomputation.need
    samples = random_samples(4)
    gradients, states = [], []
    for room in (2 * need(10_000) / SHARE, need(10) / SHARE, None):
        monkeypatch.setattr(memory_use, "available_memory", lambda room=room: room)
        gradients.append(gradient(learner, as_batch(samples)))
        states.append(recomputing(learner))
    assert states == [False, True, True], "unknown memory is little memory"
    assert all(torch.equal(gradients[0], other) for other in gradients[1:])


@pytest.mark.parametrize("wanted", [False, True])
def test_a_choice_of_the_user_holds_whatever_the_memory_is(
    learner_model: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    learner = make_learner(learner_model, gradient_checkpointing=wanted)
    for room in (1, 10**15):
        monkeypatch.setattr(memory_use, "available_memory", lambda room=room: room)
        gradient(learner, as_batch(random_samples(2)))
        assert recomputing(learner) is wanted


def test_the_bound_is_above_what_a_pass_keeps(learner_model: Path) -> None:
    learner = make_learner(learner_model, gradient_checkpointing=None)
    samples = demonstrations(4, 500)
    weights = {part.untyped_storage().data_ptr() for part in learner._model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gradient(learner, as_batch(samples))
    need = learner._built.recomputation.need(sum(len(sample.token_ids) for sample in samples))
    assert need > sum(kept.values()) > 0


def test_with_instructions_for_it_a_model_that_is_not_small_computes_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for fast, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(precision, "has_fast_bfloat16", lambda fast=fast: fast)
        assert auto_dtype(CPU, 135_000_000) == expected
        assert auto_dtype(CPU, 900_000) == auto_dtype(CPU, 0) == torch.float32
        assert auto_dtype(torch.device("cuda"), 0) == torch.bfloat16


def test_the_instructions_are_found_where_torch_does_not_know_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(precision, "_CPUINFO", tmp_path / "cpuinfo")
    for text, expected in (("flags : avx512f amx_bf16 amx_tile\n", True), ("flags : avx2\n", False), ("", False)):
        (tmp_path / "cpuinfo").write_text(text)
        assert precision.has_fast_bfloat16.__wrapped__() is expected
