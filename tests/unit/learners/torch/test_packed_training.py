from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.tiny_learners import (
    GRPO_LOSS,
    as_batch,
    gradient,
    make_learner,
    random_sample,
    random_samples,
    relative,
    same_rows,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.algorithms.packing import pack
from finqa_cli.errors import ConfigError
from finqa_cli.types import Sample
from finqa_plugins.learners.torch.packed_rows import (
    Layer,
    Segments,
    _variable_length,
    segment_attention,
    takes_packed_rows,
)
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_plugins.learners.torch.trained_model import load_base
from finqa_testing.tiny_models import make_tiny_qwen3

OPENING = tuple(range(60))
ALONE = {"packing": "off"}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300}


def tiny(kind: str, **changes: Any) -> Any:
    """A random model of an architecture, whose attention weighs something."""
    import transformers

    decoder = {**SIZES, "intermediate_size": 64, "num_key_value_heads": 2, "initializer_range": 0.2}
    makers: dict[str, Callable[[], Any]] = {
        "llama": lambda: transformers.LlamaConfig(**decoder, **changes),
        "mistral": lambda: transformers.MistralConfig(**decoder, **changes),
        "qwen2": lambda: transformers.Qwen2Config(**decoder, **changes),
        "gpt2": lambda: transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=4, n_positions=512, vocab_size=300, initializer_range=0.2, **changes
        ),
        "falcon": lambda: transformers.FalconConfig(**SIZES, **changes),
        "lfm2": lambda: transformers.Lfm2Config(
            **decoder, block_multiple_of=8, layer_types=["conv", "full_attention"], **changes
        ),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(makers[kind](), attn_implementation="sdpa").eval()


@pytest.fixture(scope="module", params=["qwen3", "llama", "gpt2"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_qwen3(tmp_path_factory.mktemp("family") / request.param)
    if request.param != "qwen3":  # the tokenizer's files stay; the learner wants some
        tiny(request.param).save_pretrained(folder)
    return folder


def precise(model: Path, packing: str, **context: Any) -> TorchLearner:
    """A learner with all weights in float64; what is left is the rounding of norms, which compute in float32."""
    learner = make_learner(model, {"packing": packing}, lora_rank=0, **context)
    learner._causal.double()
    return learner


def mixed_samples(seed: int = 0) -> list[Sample]:
    """Two groups that share an opening, an attempt that stops early in another, and some that share nothing."""
    rng = random.Random(seed)
    samples = [random_sample(rng, opening=(*OPENING, *[group] * 40)) for group in (1, 2) for _ in range(3)]
    return [*samples, *random_samples(3, seed=seed + 1), random_sample(rng, opening=samples[0].token_ids)]


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
def test_packed_is_one_by_one(family: Path, checkpointing: bool) -> None:
    samples = mixed_samples()
    packed, alone = (precise(family, how, gradient_checkpointing=checkpointing) for how in ("on", "off"))
    one_by_one = as_batch(samples, [[row] for row in range(len(samples))])
    assert relative(gradient(packed, as_batch(samples)), gradient(alone, one_by_one)) <= 1e-6
    assert relative(gradient(packed, one_by_one), gradient(alone, one_by_one)) <= 1e-6
    singly = [alone.logprobs([sample])[0] for sample in samples]
    for left, right in zip(packed.logprobs(samples), singly, strict=True):
        assert left == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize("rank", [0, 4])
def test_packed_is_one_by_one_in_float32(family: Path, rank: int) -> None:
    samples = mixed_samples()
    targets = ("c_attn", "c_proj", "c_fc") if family.name == "gpt2" else ()
    packed, alone = (
        make_learner(family, {"packing": how}, lora_rank=rank, lora_target_modules=targets) for how in ("on", "off")
    )
    one_by_one = as_batch(samples, [[row] for row in range(len(samples))])
    assert relative(gradient(packed, as_batch(samples)), gradient(alone, one_by_one)) <= 1e-5


@given(seed=st.integers(0, 2**20), counts=st.lists(st.integers(1, 4), min_size=1, max_size=4), shares=st.booleans())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cut_of_any_lengths_gives_one_gradient(
    learner_model: Path, seed: int, counts: list[int], shares: bool
) -> None:
    rng = random.Random(seed)
    samples: list[Sample] = []
    for count in counts:
        opening = [rng.randrange(300) for _ in range(rng.randint(0, 90))]
        cuts = [90 if shares else rng.randint(0, 90) for _ in range(count)]
        samples.extend(random_sample(rng, opening=opening[:cut]) for cut in cuts)
    packed, alone = (precise(learner_model, how) for how in ("on", "off"))
    wanted = gradient(alone, as_batch(samples, [[row] for row in range(len(samples))]))
    budget = rng.randint(1, 500)
    batch = pack(samples, token_budget=budget, max_rows=len(samples), padded=False)
    assert relative(gradient(packed, batch), wanted) <= 1e-6


@pytest.mark.parametrize("opening", [(), OPENING], ids=["alone", "shared"])
def test_what_happens_in_one_sequence_changes_no_other(family: Path, opening: tuple[int, ...]) -> None:
    """Not even its last bits: same shapes, so the same sums in the same order."""
    learner = make_learner(family, {"packing": "on"}, lora_rank=0)
    samples = random_samples(4, opening=opening)
    before = learner.logprobs(samples)
    changed = replace(
        samples[1], token_ids=(*opening, *[299 - token for token in samples[1].token_ids[len(opening) :]])
    )
    after = learner.logprobs([samples[0], changed, *samples[2:]])
    assert not np.array_equal(after[1], before[1])
    for row in (0, 2, 3):
        assert np.array_equal(after[row], before[row])


def test_a_base_has_no_dropout_of_its_own(family: Path) -> None:
    base = load_base(str(family), dtype=torch.float32, device=torch.device("cpu"))
    assert not any(part.p for part in base.modules() if isinstance(part, torch.nn.Dropout))


def test_a_long_segment_behind_a_shared_one_is_computed_in_blocks(
    learner_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, alone = (precise(learner_model, how) for how in ("on", "off"))
    batch = as_batch(random_samples(5, opening=OPENING))
    monkeypatch.setattr("finqa_plugins.learners.torch.packed_rows._QUERIES_PER_BLOCK", 4)
    assert relative(gradient(packed, batch), gradient(alone, batch)) <= 1e-6


def test_sequences_that_begin_alike_are_computed_once(learner_model: Path) -> None:
    learner = make_learner(learner_model, {"packing": "on"})
    samples = random_samples(6, opening=OPENING)
    inputs = learner._collate(samples)
    assert inputs.token_ids.shape == (1, 60 + sum(len(sample.token_ids) - 61 for sample in samples))
    sample = samples[0]
    assert learner._collate([sample] * 6).token_ids.shape == (1, len(sample.token_ids) - 1)
    six, one = (gradient(learner, as_batch([sample] * count)) for count in (6, 1))
    assert relative(six, one) <= 1e-5


def test_values_and_the_reference_are_those_of_rectangles(learner_model: Path) -> None:
    samples = mixed_samples()
    for rank in (0, 4):
        packed, alone = (make_learner(learner_model, {"packing": how}, lora_rank=rank) for how in ("on", "off"))
        for learner in (packed, alone):
            torch.nn.init.normal_(learner._values()._layer.weight, generator=torch.Generator().manual_seed(1))
        for name in ("reference_logprobs", "values"):
            for left, right in zip(getattr(packed, name)(samples), getattr(alone, name)(samples), strict=True):
                assert left == pytest.approx(right, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("falcon", {"alibi": True}, "support a choice of the attention"),
        ("lfm2", {}, "conv"),
    ],
)
def test_what_cannot_be_packed_keeps_its_rectangles(kind: str, changes: dict[str, Any], reason: str) -> None:
    model = tiny(kind, **changes)
    before = model.config._attn_implementation
    assert not takes_packed_rows(model, "auto")
    assert model.config._attn_implementation == before
    with pytest.raises(ConfigError, match=reason) as refused:
        takes_packed_rows(model, "on")
    assert refused.value.remedy == "--set learner.options.packing=auto"


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "mistral"])
def test_what_can_be_packed_is_used_in_its_mode(kind: str) -> None:
    model = tiny(kind).train()
    assert takes_packed_rows(model, "auto")
    assert all(part.training for part in model.modules())
    assert not takes_packed_rows(model, "off")


def test_a_model_that_does_not_heed_positions_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    own = model.base_model.forward
    monkeypatch.setattr(model.base_model, "forward", lambda position_ids=None, **rest: own(**rest))
    with pytest.raises(ConfigError, match="differ"):
        takes_packed_rows(model, "on")
    assert model.config._attn_implementation == "sdpa"


def test_a_model_that_mixes_sequences_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    own = model.base_model.forward
    monkeypatch.setattr(model.base_model, "forward", lambda segments=None, **rest: own(**rest))
    with pytest.raises(ConfigError, match="differ"):
        takes_packed_rows(model, "on")


@pytest.mark.parametrize("option", ["position_bias", "cache"])
def test_attention_that_is_not_computed_here_is_refused(option: str) -> None:
    part = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match=option):
        segment_attention(None, part, part, part, None, segments=Segments((3,), ((0,),)), **{option: 2})


def lower_right(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    longest_query: int,
    longest_key: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What FlashAttention's kernel for variable lengths computes, said plainly."""
    earlier, later = window_size
    assert later == 0
    shared = query.shape[1] // key.shape[1]
    assert enable_gqa == (shared > 1)
    outputs = []
    for number in range(len(query_ends) - 1):
        part = query[query_ends[number] : query_ends[number + 1]]
        keys, values = (
            whole[key_ends[number] : key_ends[number + 1]].repeat_interleave(shared, dim=1) for whole in (key, value)
        )
        assert len(part) <= longest_query
        assert len(keys) <= longest_key
        products = torch.einsum("qhd,khd->hqk", part, keys) * scale
        distance = torch.arange(len(keys) - len(part), len(keys))[:, None] - torch.arange(len(keys))
        hidden = (distance < 0) | (distance > earlier if earlier >= 0 else False)
        weights = products.masked_fill(hidden, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


def lower_right_of_2_11(*arguments: Any, scale: float, window_size: tuple[int, int]) -> torch.Tensor:
    """The same in PyTorch 2.11, whose kernel does not say that it takes shared heads."""
    return lower_right(*arguments, scale=scale, window_size=window_size)


@pytest.mark.parametrize("kernel", [lower_right, lower_right_of_2_11])
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("window", [None, 1, 4, 9, 40])
def test_the_kernel_for_variable_lengths_is_given_the_same_attention(
    window: int | None, heads: int, kernel: Callable[..., torch.Tensor]
) -> None:
    segments = Segments((5, 3, 4, 2, 6), ((0,), (0, 1), (0, 2), (0, 2, 3), (4,)))
    query = torch.randn(1, 4, 20, 8, dtype=torch.float64)
    key, value = (torch.randn(1, heads, 20, 8, dtype=torch.float64) for _ in range(2))
    found = _variable_length(kernel, query, key, value, Layer(scaling=0.3, window=window), segments)
    wanted, _ = segment_attention(None, query, key, value, None, scaling=0.3, sliding_window=window, segments=segments)
    assert found.shape == wanted.shape == (1, 20, 4, 8)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-12)


def test_the_learner_tells_how_it_lays_out(learner_model: Path) -> None:
    packed, alone = (make_learner(learner_model, options) for options in ({}, ALONE))
    assert (packed.packs(), alone.packs()) == (True, False)


def test_packing_leaves_no_trace_in_a_published_model(learner_model: Path, tmp_path: Path) -> None:
    folders = [
        make_learner(learner_model, {"packing": how}, lora_rank=0).publish(tmp_path / how, 1).model
        for how in ("on", "off")
    ]
    left, right = (Path(folder) / "config.json" for folder in folders)
    assert left.read_text() == right.read_text()


def test_steps_on_packed_rows_repeat_to_the_bit(learner_model: Path) -> None:
    batch = as_batch(mixed_samples())
    learners = [make_learner(learner_model, {"packing": "on"}, lora_dropout=0.1) for _ in range(2)]
    for _ in range(2):
        first, second = (learner.update(batch, GRPO_LOSS) for learner in learners)
        assert (first.loss, first.grad_norm) == (second.loss, second.grad_norm)
    assert same_rows(learners[0].logprobs(batch.samples), learners[1].logprobs(batch.samples))


def test_only_positions_that_predict_loss_tokens_feed_a_packed_loss(learner_model: Path) -> None:
    learner = make_learner(learner_model, {"packing": "on"}, lora_rank=0)
    samples = mixed_samples()
    kept: list[torch.Tensor] = []
    hook = learner._causal.base_model.register_forward_hook(
        lambda module, arguments, output: (output[0].retain_grad(), kept.append(output[0]))[-1]
    )
    gradient(learner, as_batch(samples), CrossEntropyLoss())
    hook.remove()
    assert kept[0].grad is not None
    moved = (kept[0].grad[0].abs().sum(-1) > 0).nonzero().flatten().tolist()
    assert moved == sorted(set(learner._collate(samples).positions.tolist()))
