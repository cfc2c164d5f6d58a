"""Reads a PEFT LoRA folder and applies it to a model, such that the base weights can be restored exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from finqa_cli.documents import parse_json
from finqa_cli.errors import EngineError
from finqa_cli.types.adapters import special_features
from finqa_plugins.precision import low_rank_sum

_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class Patch:
    """The low-rank change of one linear layer: `W + scale * up @ down` (Hu et al., 2021).

    Attributes:
        name: Name of the layer inside the model.
        layer: The layer; the weight of GPT-2's `Conv1D` is stored as [in, out], that of the others as [out, in].
        down: [r, in], dtype as saved.
        up: [out, r], dtype as saved.
        scale: alpha / r, or alpha / sqrt(r) for rsLoRA.
    """

    name: str
    layer: nn.Linear | Conv1D
    down: Tensor
    up: Tensor
    scale: float

    def change(self) -> Tensor:
        """The change in fp32, in the shape of the layer's weight."""
        product = self.scale * (self.up.float() @ self.down.float())
        return product.T if isinstance(self.layer, Conv1D) else product


def read_adapter(folder: Path, module: nn.Module, *, max_rank: int) -> list[Patch]:
    """Reads an adapter and checks it against the model, which is not changed; one patch for each layer, by name.

    Raises:
        EngineError: Files are missing or damaged, the adapter is not plain LoRA, its rank is above `max_rank`, or it
            belongs to another model.
    """
    config = _read_config(folder)
    rank = int(config["r"])
    if rank > max_rank:
        raise EngineError(
            f"The adapter {folder} has rank {rank}, but the engine was started for ranks up to {max_rank}.",
            remedy=f"--set lora.rank={rank}",
        )
    scale = float(config["lora_alpha"]) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    tensors = _read_tensors(folder)
    layers = dict(module.named_modules())
    device = next(module.parameters()).device
    return [_patch(folder, name, layers, pair, rank, scale, device) for name, pair in sorted(_pairs(folder, tensors))]


def _read_config(folder: Path) -> Mapping[str, Any]:
    path = folder / "adapter_config.json"
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
        kind, _, _ = str(config["peft_type"]), int(config["r"]), float(config["lora_alpha"])
    except OSError as error:
        raise EngineError(f"The adapter {folder} has no readable adapter_config.json: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{path} is not the configuration of a LoRA adapter: {error!r}.") from error
    extra = special_features(config)
    if extra or int(config["r"]) < 1:
        raise EngineError(
            f"The transformers engine serves plain LoRA adapters, but {folder} is {kind} with {', '.join(extra) or 'r'}"
            f" = {config.get(extra[0]) if extra else config['r']!r}.",
            remedy=f"finqa export {folder} --to merged --out MODEL, and use that model",
        )
    checked: Mapping[str, Any] = config
    return checked


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / "adapter_model.safetensors"
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except OSError as error:
        raise EngineError(f"The adapter {folder} has no readable adapter_model.safetensors: {error}.") from error
    except SafetensorError as error:
        raise EngineError(f"{path} is damaged: {error}.") from error
    if not tensors:
        raise EngineError(f"{path} holds no tensors.")
    return tensors


def _pairs(folder: Path, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Layer names with their two matrices."""
    left = {key for key in tensors if not key.endswith(".base_layer.weight")}  # PEFT copies adapted embeddings
    for key in tensors:
        if key.endswith(".lora_A.weight") and (other := key.replace(".lora_A.", ".lora_B.")) in tensors:
            left -= {key, other}
            yield key.removeprefix(_PREFIX).removesuffix(".lora_A.weight"), (tensors[key], tensors[other])
    if left:
        raise EngineError(f"The adapter {folder} contains tensors that are not LoRA matrices, such as {min(left)}.")


def _patch(
    folder: Path,
    name: str,
    layers: Mapping[str, nn.Module],
    pair: tuple[Tensor, Tensor],
    rank: int,
    scale: float,
    device: torch.device,
) -> Patch:
    layer, (down, up) = layers.get(name), pair
    if not isinstance(layer, (nn.Linear, Conv1D)):
        raise EngineError(f"The adapter {folder} belongs to another base model: this one has no linear layer {name}.")
    inputs, outputs = layer.weight.shape if isinstance(layer, Conv1D) else reversed(layer.weight.shape)
    expected = ((rank, inputs), (outputs, rank))
    if (tuple(down.shape), tuple(up.shape)) != expected:
        raise EngineError(
            f"The adapter {folder} belongs to another base model or rank: {name} needs {expected[0]} and "
            f"{expected[1]}, but it has {tuple(down.shape)} and {tuple(up.shape)}."
        )
    if not (down.isfinite().all() and up.isfinite().all()):
        raise EngineError(f"The adapter {folder} contains numbers that are not finite, in {name}.")
    return Patch(name, layer, down.to(device), up.to(device), scale)


class AdapterSlot:
    """Puts at most one adapter on a model.

    In fp32 it is merged, for the speed of the base model: each time from a copy of the base weight, so that
    many swaps give the same bits as one. In lower precision merging would round the adapter away. There its term is
    computed separately, in its own precision, and added before the layer's result is rounded. The term is also separate
    for a weight that several layers share.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._pristine: dict[str, tuple[nn.Linear | Conv1D, Tensor]] = {}
        self._beside: list[_Beside] = []
        self._shared = _shared_weights(module)

    def move(self, device: torch.device) -> None:
        """Moves the model and the copies of its base weights to a device. Patches stay where they are."""
        self._module.to(device)
        self._pristine = {name: (layer, weight.to(device)) for name, (layer, weight) in self._pristine.items()}
        self._shared = _shared_weights(self._module)  # addresses change

    @torch.no_grad()
    def replace(self, weights: Mapping[str, Tensor]) -> None:
        """Gives the model other base weights, in its own memory and dtype, without an adapter.

        Args:
            weights: The whole `state_dict` of a model of the same architecture, on any device.
        """
        self.put([])
        self._pristine.clear()
        for name, tensor in self._module.state_dict().items():
            tensor.copy_(weights[name])

    @torch.no_grad()
    def put(self, patches: list[Patch]) -> None:
        """Replaces the current adapter; an empty list restores the base model."""
        for beside in self._beside:
            beside.remove()
        self._beside.clear()
        for layer, weight in self._pristine.values():
            layer.weight.copy_(weight)
        for patch in patches:
            weight = patch.layer.weight
            if weight.dtype == torch.float32 and weight.data_ptr() not in self._shared:
                _, base = self._pristine.setdefault(patch.name, (patch.layer, weight.clone()))
                weight.copy_(base + patch.change())
            else:
                self._beside.append(_Beside(patch))


class _Beside:
    """The forward pass of a layer with the low-rank term, computed as the torch learner computes it.

    It replaces the layer's own, because in 16 bits the term must join the product before that is rounded.
    """

    def __init__(self, patch: Patch) -> None:
        self._patch = patch
        dtype = patch.layer.weight.dtype
        self._down, self._up = patch.down.T.to(dtype), (patch.scale * patch.up.float()).T.to(dtype)
        self._before = vars(patch.layer).get("forward")  # of a head whose logits are float32
        vars(patch.layer)["forward"] = self

    def __call__(self, states: Tensor) -> Tensor:
        layer, rows = self._patch.layer, states.flatten(0, -2)
        weight = layer.weight if isinstance(layer, Conv1D) else layer.weight.T
        found = low_rank_sum(rows, weight, layer.bias, rows @ self._down, self._up)
        return found.view(*states.shape[:-1], found.shape[-1])

    def remove(self) -> None:
        """Give the layer its own forward pass back."""
        del vars(self._patch.layer)["forward"]
        if self._before is not None:
            vars(self._patch.layer)["forward"] = self._before


def _shared_weights(module: nn.Module) -> set[int]:
    """Addresses of weights that more than one layer uses (tied embeddings)."""
    seen: set[int] = set()
    shared: set[int] = set()
    for layer in module.modules():
        weight = layer._parameters.get("weight")
        if weight is not None:
            (shared if weight.data_ptr() in seen else seen).add(weight.data_ptr())
    return shared
