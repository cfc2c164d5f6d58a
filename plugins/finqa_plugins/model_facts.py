"""What engine, learner and inspection need to know of a model of transformers, read in one place.

The facts come from the configuration of the text decoder: a multimodal model such as Gemma 3 nests it, and its vision
tower is neither served nor trained. What no configuration says is measured on the loaded model, with a few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.pytorch_utils import Conv1D

from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.placement.known_models import RESCALES
from finqa_cli.types.architectures import default_targets

ADAPTABLE = (nn.Linear, Conv1D)
"""Layers that LoRA can adapt. GPT-2's `Conv1D` is a linear layer whose weight is stored as [in, out]."""

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
ATTENTION = {FULL, SLIDING, CHUNKED}
"""Kinds of layers that keep keys and values of each token, as transformers names them."""

RECURRENT = "recurrent"
"""Kind of the layers of a model without attention heads."""

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.25}
"""Largest relative difference by rounding between two ways to compute one thing. In 16 bits another expert may be
chosen for a token; a wrong computation was seen to differ by 0.75 and more."""

ANOTHER = "choose another model; `finqa model inspect MODEL` shows what engine and learner do not support"

_ROUTERS = ("gate", "router", "shared_expert_gate")
"""Names of layers that choose experts; adapting them changes which experts are used, which LoRA is not meant for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of a causal language model, from its configuration; numbers are 0 where it does not say them.

    Attributes:
        family: Its `model_type`.
        class_name: Class of transformers that implements it; empty if there is none.
        vocabulary: Number of token ids.
        context: Longest sequence in tokens.
        layers: Number of blocks of the text decoder.
        kinds: Kind of each block, such as `full_attention`, `sliding_attention` or `linear_attention`.
        hidden: Width of the residual stream.
        inner: Width of the MLP.
        heads: Attention heads of a block.
        kv_heads: Key-value heads of a block.
        head_dim: Width of a head.
        attention: Implementation of the attention: SDPA, or eager where the class does not support it.
        quantization: Method by which the stored weights are quantized; empty: they are not.
        rescales: Option that scales the logits; empty: none.
    """

    family: str
    class_name: str
    vocabulary: int
    context: int
    layers: int
    kinds: tuple[str, ...]
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    attention: Literal["sdpa", "eager"]
    quantization: str
    rescales: str

    @property
    def stateful(self) -> str:
        """Why the blocks do not all keep keys and values of each token; empty if they do."""
        others = sorted(set(self.kinds) - ATTENTION)
        return f"it has layers of {', '.join(others)}, not only of keys and values for each token" if others else ""

    @property
    def partial(self) -> str:
        """Why blocks do not attend to all earlier tokens; empty if all do."""
        others = sorted(set(self.kinds) - {FULL})
        return f"it has layers of {', '.join(others)}" if others else ""

    def warnings(self) -> Iterator[str]:
        """What the transformers engine and learner `torch` do not support of this model, or slowly, a sentence each."""
        if self.stateful:
            yield f"the transformers engine does not serve it ({self.stateful}): use --engine vllm"
        if self.rescales:
            yield f"it rescales its logits ({self.rescales}), which learner 'torch' does not support"
        if self.attention == "eager" and self.heads:
            yield (
                f"{self.class_name} supports no fused attention (SDPA): engine and learner run with attention in plain "
                "PyTorch (eager), which needs memory for the square of the length"
            )
        if self.quantization:
            yield f"its weights are quantized ({self.quantization}): learner 'torch' does not train it"


def text_config(config: Any) -> Any:
    """The configuration of the text decoder: the configuration itself, or a part of it."""
    return config.get_text_config(decoder=True)


def read_facts(config: Any) -> ModelFacts:
    """The facts that a configuration of transformers says.

    Raises:
        ConfigError: It has no single text decoder.
    """
    with foreign_code(f"The configuration of {getattr(config, 'model_type', 'the model')!r} cannot be read", ANOTHER):
        text = text_config(config)
    heads, hidden = number(text, "num_attention_heads"), number(text, "hidden_size")
    kind = _class(config)
    quantization = _value(config, "quantization_config") or {}
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    return ModelFacts(
        family=str(config.model_type),
        class_name=getattr(kind, "__name__", ""),
        vocabulary=number(text, "vocab_size"),
        context=number(text, "max_position_embeddings"),
        layers=number(text, "num_hidden_layers"),
        kinds=_kinds(text, heads),
        hidden=hidden,
        inner=number(text, "intermediate_size") or 4 * hidden,
        heads=heads,
        kv_heads=number(text, "num_key_value_heads") or heads,
        head_dim=number(text, "head_dim") or (hidden // heads if heads else 0),
        attention="sdpa" if kind is None or getattr(kind, "_supports_sdpa", False) else "eager",
        quantization=str(getattr(method, "quant_method", method) or ""),
        rescales=next((name for name, neutral in RESCALES.items() if _value(text, name) not in (None, neutral)), ""),
    )


def number(config: Any, name: str) -> int:
    """A number in a configuration, 0 if it has none: families use other names, or a number for each layer."""
    value = _value(config, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # an attribute that differs by layer raises an error of transformers
        return None


def _class(config: Any) -> Any:
    """The class that `AutoModelForCausalLM` would choose."""
    try:
        found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except (KeyError, ImportError):
        return None
    return found[0] if isinstance(found, tuple) else found


def _kinds(text: Any, heads: int) -> tuple[str, ...]:
    kinds = _value(text, "layer_types")
    if kinds:
        return tuple(map(str, kinds))
    kind = FULL if heads else RECURRENT
    if number(text, "sliding_window") and _value(text, "use_sliding_window") is not False:
        kind = SLIDING
    elif number(text, "attention_chunk_size"):
        kind = CHUNKED
    return (kind,) * number(text, "num_hidden_layers")


def text_decoder(causal: Any) -> Any:
    """The part of a model that computes the last hidden states of text, without vision tower and output head."""
    for part in (causal.get_decoder(), causal.base_model, getattr(causal, "model", None)):
        if part is not None and part is not causal and hasattr(part, "get_input_embeddings"):
            return part
    return causal


def decoder_layers(causal: Any) -> dict[str, Any]:
    """The linear layers of the text decoder by their full name in the model, without the output head."""
    decoder, head = text_decoder(causal), causal.get_output_embeddings()
    prefix = decoder_prefix(causal)
    return {
        f"{prefix}{name}": part
        for name, part in decoder.named_modules()
        if isinstance(part, ADAPTABLE) and part is not head
    }


def decoder_prefix(causal: Any) -> str:
    """The name of the text decoder in the model with a dot, such as `model.language_model.`; empty for the model."""
    decoder = text_decoder(causal)
    return next((f"{name}." for name, part in causal.named_modules() if part is decoder and name), "")


def target_names(causal: Any) -> tuple[str, ...]:
    """The names of the layers that LoRA adapts by default."""
    names = dict.fromkeys(name.rpartition(".")[2] for name in decoder_layers(causal))
    return default_targets([name for name in names if name not in _ROUTERS])


@contextmanager
def foreign_code(what: str, remedy: str) -> Iterator[None]:
    """Turns any exception of a model's code in this block into a ConfigError; lack of memory stays as it is.

    Args:
        what: What failed, to which the reason is appended.
        remedy: What can be done.
    """
    try:
        yield
    except FinqaError:
        raise
    except Exception as error:  # each architecture, and the hub and file libraries, raise their own kinds
        if is_out_of_memory(error):
            raise
        raise ConfigError(f"{what}: {reason_of(error)}", remedy=remedy) from error


def reason_of(error: Exception) -> str:
    """The first line of an error's message, or its kind."""
    text = next(iter(str(error).strip().splitlines()), "")[:300]
    return (
        text
        if text and not isinstance(error, AttributeError | TypeError | KeyError)
        else f"{type(error).__name__} {text}"
    )


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch or Python ran out of memory; on a CPU only the message of torch shows it."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def differs(found: Tensor, wanted: Tensor) -> bool:
    """Whether two results differ by more than rounding in their dtype; False where the wanted one is not finite.

    Numbers that are not finite are reported where they are used, with the layer that they come from.
    """
    if not wanted.isfinite().all():
        return False
    most = TOLERANCE.get(wanted.dtype, 1e-3)
    return not float((found.float() - wanted.float()).norm()) <= most * float(wanted.float().norm())


@torch.no_grad()
def check_trainable(causal: Any, states: Callable[[Tensor], Tensor]) -> None:
    """Checks that learner `torch` computes a model's log-probabilities: states of the decoder, then the output head.

    Args:
        causal: The model.
        states: [1, L, H] last hidden states of token ids [1, L].

    Raises:
        ConfigError: Its code fails, a token depends on later ones, or the logits are not those of the head alone.
    """
    name = causal.name_or_path
    refusal = f"Model {name!r} ({type(causal).__name__}) cannot be trained"
    training = causal.training
    causal.eval()
    try:
        with foreign_code(f"{refusal}, because its code fails", ANOTHER):
            rows = causal.get_input_embeddings().weight.shape[0]
            ids = torch.arange(3, 11, device=causal.device)[None] % rows
            logits = causal(input_ids=ids, use_cache=False).logits
            whole, part = states(ids), states(ids[:, :5])
            ours = causal.get_output_embeddings()(whole)
            if cap := _value(text_config(causal.config), "final_logit_softcapping"):
                ours = (ours / cap).tanh() * cap
    finally:
        causal.train(training)
    if differs(part, whole[:, :5]):
        raise ConfigError(
            f"{refusal}: its tokens depend on later tokens, as in an encoder.", remedy="choose a causal language model"
        )
    if ours.shape != logits.shape or differs(ours, logits):
        raise ConfigError(
            f"{refusal}: its logits are not those of its output layer alone, and learner 'torch' computes them so.",
            remedy="choose a model without a further transformation, such as a Qwen3",
        )
