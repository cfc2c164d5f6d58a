"""The policy's forward pass as one module, and sharding of its weights over processes (FSDP2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from finqa_plugins.learners.torch.forward import Inputs, state_logprobs
from finqa_plugins.model_facts import text_decoder


class PolicyForward(nn.Module):
    """Everything that a micro-batch computes with the weights, which are therefore gathered once for it."""

    def __init__(self, causal: Any, *, wide: bool = False) -> None:
        """Wraps the model; with `wide` the logits are float32, also where the model computes in 16 bits."""
        super().__init__()
        self.causal = causal
        self._wide = wide

    def forward(
        self, inputs: Inputs, temperature: float, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """States [N, H] that predict the targets, and log-probabilities [N] and entropies [N] of these, in nats."""
        states = self.states(inputs)
        logprobs, entropy = state_logprobs(
            self.causal,
            states,
            inputs.targets,
            temperature,
            entropy_gradient=entropy_gradient,
            wide=self._wide,
            softcap=getattr(self.causal.config.get_text_config(), "final_logit_softcapping", None),
        )
        return states, logprobs.clone(), entropy  # FSDP2 registers hooks on the results, and warns about views

    def states(self, inputs: Inputs) -> torch.Tensor:
        """Last hidden states [N, H] that predict the targets.

        Padded rows get no attention mask: with right padding and causal attention it changes nothing, and without it
        PyTorch uses its fastest kernel.
        """
        packed = {} if inputs.segments is None else {"position_ids": inputs.position_ids, "segments": inputs.segments}
        found = text_decoder(self.causal)(input_ids=inputs.token_ids, use_cache=False, **packed)
        hidden: torch.Tensor = found.last_hidden_state
        return hidden.flatten(0, 1).index_select(0, inputs.positions)


def shard(forward: PolicyForward, mesh: DeviceMesh) -> None:
    """Shards each decoder layer, and the rest as one unit, over the processes of the mesh, on its device.

    Gradients are summed over the processes, because the loss is already divided by the tokens of the whole batch.
    Layers are gathered when they run and resharded after, forwards and backwards; the rest stays gathered until the
    backward pass, which may need the head for several chunks of logits.
    """
    kinds = tuple(forward.causal._no_split_modules or ())
    layers = [module for module in forward.causal.modules() if type(module).__name__ in kinds]
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(forward, mesh=mesh)
    register_fsdp_forward_method(forward, "states")
    for module in forward.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum


def reshard(forward: PolicyForward) -> None:
    """Shards parameters again after a forward pass without a backward pass; without sharding does nothing."""
    if isinstance(forward, FSDPModule):
        forward.reshard()


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or the full tensor of a shard; all processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather_tensors(
    tensors: Mapping[str, torch.Tensor], *, keep: bool, dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor]:
    """The full tensors by name, gathered one after the other.

    Args:
        tensors: Tensors by name, in the same order in every process.
        keep: Whether this process keeps the result; otherwise it only takes part, and its result is empty.
        dtype: Precision of the result. Each tensor is rounded before the next one is gathered, so that there is no
            second copy of all weights in the old precision. None: unchanged.

    Returns:
        Tensors on the CPU if they were sharded or `dtype` is set, otherwise where they are.
    """
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        joined = full_tensor(tensor.detach())
        if keep:
            moves = dtype is not None or isinstance(tensor, DTensor)
            rounded = joined if dtype is None else joined.to(dtype)
            found[name] = (rounded.cpu() if moves else rounded).contiguous()
    return found


def whole_state(
    model: Any, trained: Mapping[str, torch.Tensor] | None, *, keep: bool, dtype: torch.dtype | None = None
) -> dict[str, torch.Tensor] | None:
    """The tensors to write for a model; None if its weights are neither sharded nor of another precision.

    Args:
        model: The model, whose parameter names are used; tied parameters stay tied.
        trained: Only these parameters; None for all, and the buffers of its state.
        keep: See `gather_tensors`.
        dtype: Precision of the parameters; buffers keep theirs. None: unchanged.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    changes = any(isinstance(one, DTensor) or dtype not in (None, one.dtype) for one in named.values())
    if not changes:
        return None
    if trained is not None:
        return gather_tensors(trained, keep=keep, dtype=dtype)
    joined = gather_tensors(dict(model.named_parameters()), keep=keep, dtype=dtype)
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    state = model.state_dict() if keep else {}
    return {name: joined[first[id(named[name])]] if name in named else value for name, value in state.items()}


def shard_like(tensor: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """The tensor, sharded like the pattern if that is sharded. Every process passes the full tensor."""
    if not isinstance(pattern, DTensor):
        return tensor
    moved = tensor.to(pattern.device)
    return distribute_tensor(moved, pattern.device_mesh, pattern.placements, src_data_rank=None)
