"""The formulas behind plans, against models that PyTorch builds and runs on its meta device."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from finqa_cli.contracts import LearnerContext
from finqa_cli.placement import memory_formulas
from finqa_cli.placement.known_models import architecture_of, known
from finqa_cli.types import Architecture
from finqa_cli.types.architectures import PROJECTIONS
from finqa_plugins.learners.torch.forward import state_logprobs
from finqa_plugins.learners.torch.meta_model import describe
from finqa_plugins.learners.torch.trained_model import add_adapter
from finqa_plugins.model_facts import read_facts

SMALL = {"vocab_size": 512, "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 160}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**SMALL, **HEADS, head_dim=32, tie_word_embeddings=True),
        Qwen3Config(**SMALL, **HEADS, head_dim=16, tie_word_embeddings=False),
        Qwen2Config(**SMALL, **HEADS, tie_word_embeddings=True),
        LlamaConfig(**SMALL, **HEADS, tie_word_embeddings=False),
        LlamaConfig(**SMALL, **HEADS, attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
        GPT2Config(vocab_size=512, n_layer=3, n_embd=64, n_head=4, n_positions=128),
    ],
    ids=lambda config: config.model_type,
)
def test_an_architecture_is_read_from_numbers_as_torch_builds_it(config: Any) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    built = describe(read_facts(config), model, "")
    read = architecture_of(config.to_dict())
    assert read is not None
    for name in ("parameters", "layers", "hidden", "heads", "key_value_heads", "head_dim", "vocabulary", "tied"):
        assert getattr(read, name) == getattr(built, name), name
    assert read.kv_values_per_token == built.kv_values_per_token
    assert {*read.linear} == {*built.linear}
    assert read.adapter_parameters(read.lora_targets, 8) == built.adapter_parameters(built.lora_targets, 8)


@pytest.mark.parametrize("broken", [{}, {"model_type": "qwen3"}, {"model_type": "mamba"}, {"model_type": ["x"]}])
def test_what_is_not_understood_is_left_to_others(broken: dict[str, Any]) -> None:
    assert architecture_of(broken) is None


def test_well_known_models_have_their_published_sizes() -> None:
    sizes = {name: known(f"Qwen/Qwen3-{name}") for name in ("0.6B", "1.7B", "4B", "8B", "14B", "32B")}
    counted = {name: round(found.parameters / 1e9, 2) for name, found in sizes.items() if found}
    # of the model cards: 0.6, 1.7, 4.0, 8.2, 14.8 and 32.8 billion
    assert counted == {"0.6B": 0.6, "1.7B": 1.72, "4B": 4.02, "8B": 8.19, "14B": 14.77, "32B": 32.76}
    assert known("someone/fine-tune-of-qwen3-8b-v2") is None
    assert known("someone/mamba-8b", by_part=True) is None
    assert known("someone/fine-tune-of-Qwen3-8B-v2", by_part=True) == known("Qwen/Qwen3-8B")


class Peak(TorchDispatchMode):
    """Counts the bytes of tensors alive, on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, Any] = {}
        self.now = self.peak = 0

    def watch(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        number, size = id(storage), storage.nbytes()
        if number in self.alive:
            return

        def gone(_: Any) -> None:
            self.now -= size
            del self.alive[number]

        self.alive[number] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = call(*args, **(kwargs or {}))
        for part in tree_iter(result):
            if isinstance(part, torch.Tensor):
                self.watch(part)
        return result


class Kernel(torch.autograd.Function):
    """What a fused attention kernel keeps and makes, without its arithmetic."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(query.transpose(1, 2)).contiguous()
        sums = torch.empty(query.shape[1], query.shape[2], dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, result, sums)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def peak_bytes(architecture: dict[str, int], tokens: int, *, checkpointing: bool) -> tuple[Architecture, int]:
    """The architecture, and the activations' peak of a forward and a backward pass with LoRA on every linear layer."""
    ALL_ATTENTION_FUNCTIONS.register("counted", lambda module, q, k, v, mask=None, **_: (Kernel.apply(q, k, v), None))
    ALL_MASK_ATTENTION_FUNCTIONS.register("counted", lambda *_, **__: None)
    config = Qwen3Config(vocab_size=2048, head_dim=128, **architecture)
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model = add_adapter(base, LearnerContext(model="m", learning_rate=1e-4, lora_rank=16), PROJECTIONS)
        if checkpointing:
            base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        base.set_attn_implementation("counted")
        model.train()
        peak = Peak()
        for parameter in model.parameters():
            peak.watch(parameter)
        before = peak.now
        with peak:
            ids = torch.zeros(1, tokens, dtype=torch.long)
            hidden = base.base_model(
                input_ids=ids,
                use_cache=False,
                attention_mask={"full_attention": None},
                position_ids=torch.arange(tokens)[None],
            ).last_hidden_state
            states = hidden.flatten(0, 1)[:8]
            logprobs, _ = state_logprobs(base, states, torch.zeros(8, dtype=torch.long), 1.0)
            logprobs.sum().backward()
    gradients = sum(4 * part.numel() for part in model.parameters() if part.requires_grad)
    found = architecture_of(config.to_dict())
    assert found is not None
    return found, peak.peak - before - gradients


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize(
    "shape",
    [
        {"hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "num_key_value_heads": 8},
        {"hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 40, "num_key_value_heads": 8},
        {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8},
        {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_key_value_heads": 2},
    ],
    ids=lambda shape: f"{shape['hidden_size']}",
)
def test_predicted_activations_are_those_of_the_learner(shape: dict[str, int], checkpointing: bool) -> None:
    found, measured = peak_bytes({**shape, "num_hidden_layers": 4}, 8192, checkpointing=checkpointing)
    predicted = memory_formulas.activations(found, 8192, rank=16, checkpointing=checkpointing)
    assert predicted == pytest.approx(measured, rel=0.04)


def test_what_is_trained_costs_what_adamw_holds() -> None:
    model = known("Qwen/Qwen3-0.6B")
    assert model is not None
    count = memory_formulas.trained(model, ("q_proj",), 8)
    assert count == 28 * 8 * (1024 + 2048)
    weight = torch.nn.Parameter(torch.ones(count))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    assert weight.grad is not None
    parts = memory_formulas.learner_items(model, 16, rank=8, targets=("q_proj",))
    averages = [optimizer.state[weight][name] for name in ("exp_avg", "exp_avg_sq")]
    assert parts["weights"] == 2 * model.parameters + weight.nbytes
    assert (parts["gradients"], parts["optimizer"]) == (weight.grad.nbytes, sum(part.nbytes for part in averages))


def test_processes_share_weights_and_add_what_they_gather() -> None:
    model = known("Qwen/Qwen3-8B")
    assert model is not None
    alone = memory_formulas.learner_items(model, 4096, rank=0)
    four = memory_formulas.learner_items(model, 4096, rank=0, processes=4)
    for part in ("weights", "gradients", "optimizer"):
        assert four[part] == alone[part] / 4
    assert "gathered_weights" in four and "gathered_weights" not in alone
    assert alone["autocast_weights"] == 2 * model.parameters and "autocast_weights" not in four
    assert four["whole_gradients"] >= 4 * model.vocabulary * model.hidden
    assert "whole_gradients" not in memory_formulas.learner_items(model, 4096, rank=16, processes=4)
    awake = memory_formulas.awake_items(model, four, 4096, rank=0, processes=4)
    assert awake["weights"] == four["weights"] and "activations" not in awake
    assert awake["publishing"] == 6 * model.vocabulary * model.hidden and awake["scoring"] > 0
    reference = memory_formulas.learner_items(model, 4096, rank=0, reference=True)
    assert reference["weights"] - alone["weights"] == 2 * model.parameters


def test_a_key_head_is_on_one_device_at_least() -> None:
    model = known("Qwen/Qwen2.5-3B-Instruct")  # two key heads
    assert model is not None
    one = memory_formulas.kv_on_device(model, 1000, 1)
    assert memory_formulas.kv_on_device(model, 1000, 2) == one / 2
    assert memory_formulas.kv_on_device(model, 1000, 4) == one / 2
