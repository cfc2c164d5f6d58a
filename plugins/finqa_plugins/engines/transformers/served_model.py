"""Loads a causal language model and runs it over batch buffers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.utils import logging as transformers_logging

from finqa_cli.errors import ConfigError
from finqa_cli.local_models import local_model
from finqa_plugins.attention import small_windows
from finqa_plugins.engines.transformers.device_placement import UNLIMITED_CONTEXT
from finqa_plugins.engines.transformers.kv_store import BatchCache, KvShape, Scratch
from finqa_plugins.engines.transformers.opening_attention import OPENING_ATTENTION, SharedOpening
from finqa_plugins.model_facts import (
    ModelFacts,
    differs,
    foreign_code,
    is_out_of_memory,
    read_facts,
    reason_of,
)
from finqa_plugins.precision import wide_logits

NAME_ANOTHER = "copy the model again, or name another one, a folder or hub id"
ANOTHER = "choose another engine (--engine vllm), or another model"

CALL_BYTES = 4 << 20
"""Bytes that a core reads from memory in the time that the calls of one layer take, about 0.4 ms."""
Fingerprint = tuple[str, tuple[tuple[str, int, int], ...]]
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
LOADING = threading.Lock()
"""from_pretrained changes torch's and its own globals while it runs: two at once leave weights out of both models."""

_OF_NO_WEIGHT = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")
"""Keys of a config.json that have no effect on the architecture."""

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json", "spiece.model")


def check_model_folder(folder: Path, *, tokenizer: bool = True) -> None:
    """Raises a ConfigError that names everything a local model folder lacks."""
    missing = []
    if not (folder / "config.json").is_file():
        missing.append("config.json")
    if not any(path for pattern in WEIGHTS for path in folder.glob(pattern)):
        missing.append("weights (*.safetensors)")
    if tokenizer and not any((folder / name).is_file() for name in TOKENIZERS):
        missing.append("a tokenizer (tokenizer.json)")
    if missing:
        raise ConfigError(
            f"The model folder {folder} is incomplete: it has no {', no '.join(missing)}.",
            remedy="save the model and its tokenizer with save_pretrained() into that folder, or name another model",
        )


def fingerprint(reference: str) -> Fingerprint:
    """Changes when the reference or, for a folder, a weight file changes."""
    folder = Path(reference)
    if not folder.is_dir():
        return reference, ()
    files = sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))
    stats = tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return str(folder.resolve()), stats


class CausalModel:
    """A causal language model with the shape of its keys and values and its forward pass.

    Attributes:
        module: The transformers model, in evaluation mode.
        fingerprint: Identifies the files it was loaded from.
        shape: Shape of the keys and values of one token.
        vocabulary: Number of ids that may be passed.
        context: The model's own limit of a sequence, in tokens.
        shares_openings: Whether a common opening may be kept once for a whole batch.
        forward_bytes: What a forward pass of one more batch costs, as bytes read from memory: the weights, and the time
            that its calls take at any size.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        source: Fingerprint,
        *,
        wide_head: bool = False,
    ) -> None:
        """Prepares a module on the device; with `wide_head` its logits are float32 although it computes in 16 bits."""
        self.module = module
        self.fingerprint = source
        self.device = device
        facts = read_facts(module.config)
        check_served(source[0], facts)
        self.vocabulary = facts.vocabulary or int(module.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
        self.context = facts.context or UNLIMITED_CONTEXT
        self.shares_openings = False
        with foreign_code(f"The transformers engine cannot serve {source[0]!r} ({type(module).__name__})", ANOTHER):
            self.shape = self._probe(dtype)
            self._check_cache(source[0])
        weights = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        self.forward_bytes = weights + self.shape.layers * CALL_BYTES
        # On CUDA the fused kernels of whole rows are preferred.
        backend = bool(getattr(module, "_supports_attention_backend", False))
        self.shares_openings = device.type == "cpu" and backend
        if self.shares_openings:
            self.shares_openings = self._attends_to_openings()
        if wide_head and dtype != torch.float32:  # after the checks above, whose tolerance is that of the logits' dtype
            _widen_head(module)

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, positions: Tensor, valid: Tensor, cache: BatchCache, opening: Tensor | None
    ) -> Tensor:
        """[N, V] logits after the last token; keys and values go into the cache.

        Args:
            token_ids: [N, L] ids.
            positions: [N, L] place of each token in its sequence.
            valid: [N, filled + L] False at columns before a row's first token.
            cache: Cache of the N rows.
            opening: [layers, 2, kv heads, P, D] keys and values of the tokens before the rows, or None.
        """
        extra: dict[str, Any] = {"attention_mask": valid}
        if self.shares_openings:
            shared = None if opening is None else SharedOpening(opening, positions)
            extra = {"attention_mask": _causal(valid, token_ids.shape[1], self.shape.dtype), "opening": shared}
        output = self.module(
            input_ids=token_ids,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            **extra,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    @torch.inference_mode()
    def _attends_to_openings(self) -> bool:
        """Makes the model use `opening_attention` if its logits are then those of its own attention to a whole row.

        Sliding windows are so small meanwhile that they matter in the row.
        """
        module: Any = self.module
        before, start, cache = module.config._attn_implementation, 5, DynamicCache()
        positions = torch.arange(12)[None]
        # Not the first ids: models were hardly trained on those, and their logits are mostly rounding in 16 bits.
        ids = (positions + 1) * 7919 % self.vocabulary
        valid = torch.ones(1, 12, dtype=torch.bool)
        try:
            with small_windows(module, 4):
                wanted = module(input_ids=ids, past_key_values=cache).logits
                module.set_attn_implementation(OPENING_ATTENTION)
                known = torch.stack([torch.cat((layer.keys, layer.values)) for layer in cache.layers])
                buffer = torch.zeros_like(known[:, :, None])
                found = [
                    self.forward(
                        ids[:, begin:end],
                        positions[:, begin:end],
                        valid[:, start:end],
                        BatchCache(buffer, slice(0, 1), begin - start),
                        known[..., :start, :],
                    )
                    for begin, end in ((start, 8), (8, 11), (11, 12))
                ]
            equal = not differs(torch.cat(found), wanted[0, [7, 10, 11]])
        except Exception:  # a model's own code may raise anything for options that it does not know
            equal = False
        if not equal:
            module.set_attn_implementation(before)
        return equal

    @torch.inference_mode()
    def _probe(self, dtype: torch.dtype) -> KvShape:
        cache = DynamicCache()
        self.module(input_ids=torch.zeros(1, 1, dtype=torch.long, device=self.device), past_key_values=cache)
        keys = [getattr(layer, "keys", None) for layer in cache.layers]
        values = [getattr(layer, "values", None) for layer in cache.layers]
        shapes = {tuple(tensor.shape) if tensor is not None else () for tensor in (*keys, *values)}
        if len(shapes) != 1 or () in shapes:
            raise ConfigError(
                f"The transformers engine supports only models with keys and values of one shape in all layers; those "
                f"of {type(self.module).__name__} differ, or it keeps none.",
                remedy=ANOTHER,
            )
        (_, heads, _, width) = shapes.pop()
        return KvShape(layers=len(keys), kv_heads=heads, width=width, dtype=dtype)

    @torch.inference_mode()
    def _check_cache(self, name: str) -> None:
        """Compares logits computed with cached keys and values, in padded rows, with those of the whole sequences.

        Raises:
            ConfigError: They differ, so that the model would sample from another distribution than its own.
        """
        count = self.module.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        rows = [[number % count for number in range(3, 9)], [number % count for number in range(11, 15)]]
        length = len(rows[0])
        padded = torch.tensor([[0] * (length - len(row)) + row for row in rows], device=self.device)
        valid = torch.tensor([[False] * (length - len(row)) + [True] * len(row) for row in rows], device=self.device)
        positions = (valid.cumsum(dim=1) - 1).clamp(min=0)
        buffer = Scratch(self.shape, self.device).view(len(rows), length)
        for start, end in ((0, length - 2), (length - 2, length - 1), (length - 1, length)):
            cache = BatchCache(buffer, slice(0, len(rows)), start)
            found = self.forward(padded[:, start:end], positions[:, start:end], valid[:, :end], cache, None)
        for row, logits in zip(rows, found, strict=True):
            ids = torch.tensor([row], device=self.device)
            if differs(logits, self.module(input_ids=ids, use_cache=False).logits[0, -1]):
                raise ConfigError(
                    f"The transformers engine cannot serve {name!r}: {type(self.module).__name__} computes other "
                    "logits with cached keys and values than for the whole sequence.",
                    remedy=ANOTHER,
                )


def _widen_head(module: Any) -> None:
    """Makes a plain head compute float32 logits, as the learner's does; one with an adapter computes as the layers."""
    head = module.get_output_embeddings()
    if type(head) is nn.Linear:
        vars(head)["forward"] = partial(wide_logits, head)


def _causal(valid: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """[N, 1, L, filled + L] additive mask from [N, filled + L]; the last L columns are the queries' own."""
    seen = valid[:, None, None, :]
    if length > 1:
        columns = torch.arange(valid.shape[1], device=valid.device)
        seen = seen & (columns[None, :] <= columns[-length:, None])
    return torch.zeros(seen.shape, dtype=dtype, device=valid.device).masked_fill_(~seen, float("-inf"))


def check_served(reference: str, facts: ModelFacts) -> None:
    """Raises a ConfigError if layers of the model keep something else than keys and values of each token."""
    if facts.stateful:
        raise ConfigError(
            f"The transformers engine cannot serve {reference!r} ({facts.class_name}): {facts.stateful}.",
            remedy=ANOTHER,
        )


def check_model(reference: str) -> None:
    """Checks a model folder or hub id by its configuration alone.

    Raises:
        ConfigError: transformers cannot read it, or the engine does not serve such a model.
    """
    folder = Path(reference)
    if folder.is_dir():
        check_model_folder(folder, tokenizer=False)
    with foreign_code(f"The model {reference!r} cannot be loaded", NAME_ANOTHER):
        config = AutoConfig.from_pretrained(local_model(reference))
    check_served(reference, read_facts(config))


def read_model(reference: str, *, dtype: torch.dtype, fits: Callable[[Any], None], tokenizer: bool = True) -> nn.Module:
    """Reads a folder or hub id into main memory. `fits` raises a ConfigError if a model with this config is too large.

    Raises:
        ConfigError: The folder is incomplete, its weights do not fit its config, the hub has no such model, or the
            model is too large.
        Exception: Anything for which `is_out_of_memory` is true.
    """
    transformers_logging.disable_progress_bar()
    folder = Path(reference)
    if folder.is_dir():
        check_model_folder(folder, tokenizer=tokenizer)
    try:
        with LOADING:
            config = AutoConfig.from_pretrained(local_model(reference))
            facts = read_facts(config)
            check_served(reference, facts)
            fits(config)
            module, info = AutoModelForCausalLM.from_pretrained(
                local_model(reference),
                config=config,
                dtype=dtype,
                output_loading_info=True,
                attn_implementation=facts.attention,
            )
    except ConfigError:
        raise
    except Exception as error:  # transformers, safetensors and the hub each raise their own kinds
        if is_out_of_memory(error):
            raise
        raise ConfigError(
            f"The model {reference!r} cannot be loaded: {reason_of(error)}",
            remedy=NAME_ANOTHER,
        ) from error
    lacking = sorted({str(key) for kind in ("missing_keys", "mismatched_keys") for key in info.get(kind) or ()})
    if lacking:
        raise ConfigError(
            f"The weights of {reference!r} do not fit its config.json: {len(lacking)} tensors are missing or have "
            f"another shape, the first is {lacking[0]}.",
            remedy="save the model again with save_pretrained(), or name another model",
        )
    read: nn.Module = module.eval().requires_grad_(False)
    return read


def load_model(
    reference: str, *, device: torch.device, dtype: torch.dtype, fits: Callable[[Any], None], wide_head: bool = False
) -> CausalModel:
    """Loads a model as `read_model` does, onto a device; a folder must have its tokenizer."""
    source = fingerprint(reference)
    module = read_model(reference, dtype=dtype, fits=fits).to(device)
    return CausalModel(module, device, dtype, source, wide_head=wide_head)


def check_finite(reference: str, module: nn.Module) -> None:
    """Raises a ConfigError that names the first weight with a number that is not finite."""
    for name, weight in module.named_parameters():
        if not weight.isfinite().all():
            raise ConfigError(f"The model {reference!r} contains numbers that are not finite, in {name}.")


def same_architecture(left: nn.Module, right: nn.Module) -> bool:
    """Whether both models compute the same once the weights of one are copied into the other."""
    return type(left) is type(right) and _architecture(left) == _architecture(right)


def _architecture(module: Any) -> tuple[Any, ...]:
    """The configuration without irrelevant keys, and the names, shapes and ties of the weights."""
    first = {id(weight): name for name, weight in module.named_parameters()}
    ties = {name: first[id(weight)] for name, weight in module.named_parameters(remove_duplicate=False)}
    return (
        _described(module.config.to_dict()),
        {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()},
        ties,
    )


def _described(config: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _described(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if name not in _OF_NO_WEIGHT
    }
