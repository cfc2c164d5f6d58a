"""The value function: one linear layer on the policy's last hidden states, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_plugins.learners.torch import state
from finqa_plugins.learners.torch.forward import Inputs

_FILE = "values.safetensors"


class ValueHead:
    """V(s) = w h(s) + b, with the policy's last hidden state h(s) from which the next token is sampled.

    It is float32 and begins at 0, so that the first advantages are those without a value function. It is not part of
    the model: published adapters do not contain it.

    AdamW moves every weight by about its rate, and a sum over H of them by H times as much; so the rate of the weights
    is the given rate divided by H (Tensor Programs V, arXiv 2203.03466, table 3, output weights under Adam), and one
    rate fits models of any width.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self._layer = nn.Linear(width, 1, device=device, dtype=torch.float32)
        nn.init.zeros_(self._layer.weight)
        nn.init.zeros_(self._layer.bias)
        self._named = dict(self._layer.named_parameters())
        groups: list[dict[str, Any]] = [{"params": [self._layer.weight]}, {"params": [self._layer.bias]}]
        self._optimizer = torch.optim.AdamW(groups, lr=0.0, weight_decay=0.0, fused=True)
        self._width = width

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[N] values of states [N, H], in float32 also under autocast."""
        with torch.autocast(states.device.type, enabled=False):
            values: torch.Tensor = self._layer(states.float())[:, 0]
        return values

    def clear(self) -> None:
        """Drops the gradient."""
        self._optimizer.zero_grad(set_to_none=True)

    def join_gradients(self, add: Callable[[torch.Tensor], None]) -> None:
        """Replaces the gradients by their sums over all processes, which have the same weights.

        Args:
            add: Replaces a tensor by its sum over all processes, in place.
        """
        for part in self._named.values():
            if part.grad is None:
                part.grad = torch.zeros_like(part)
            add(part.grad)

    def clip(self, largest: float) -> float:
        """Scales the gradient down to the norm `largest`, separately from the policy's; returns the norm before."""
        return float(torch.nn.utils.clip_grad_norm_(self._layer.parameters(), largest))

    def step(self, rate: float) -> None:
        """One AdamW step; for the meaning of `rate` see the class."""
        weight, bias = self._optimizer.param_groups
        weight["lr"], bias["lr"] = rate / self._width, rate
        self._optimizer.step()

    def save(self, folder: Path) -> None:
        """Writes weights and moments into the learner's state.

        Raises:
            StorageError: The disk is full or is not writable.
        """
        tensors = {name: part.detach() for name, part in self._named.items()}
        tensors |= state.moments(self._named, self._optimizer)
        with state.storing(folder / _FILE):
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / _FILE)

    @classmethod
    def load(cls, folder: Path, width: int, device: torch.device) -> ValueHead | None:
        """Loads what `save` wrote; None if the learner that saved the folder had no value function.

        Raises:
            ConfigError: The file is damaged or of another width.
        """
        if not (folder / _FILE).exists():
            return None
        head = cls(width, device)
        try:
            tensors = load_file(folder / _FILE)
        except (OSError, SafetensorError) as error:
            raise state.damaged(folder, str(error)) from error
        moments = {f"{moment}.{name}" for moment in state.MOMENTS for name in head._named}
        fits = all(name in tensors and tensors[name].shape == part.shape for name, part in head._named.items())
        if not fits or set(tensors) - set(head._named) not in (set(), moments):
            raise state.damaged(folder, f"{_FILE} does not hold a value function of width {width} and its moments")
        with torch.no_grad():
            for name, part in head._named.items():
                part.copy_(tensors[name])
        if moments <= set(tensors):
            states = {
                place: {moment: tensors[f"{moment}.{name}"] for moment in state.MOMENTS}
                for place, name in enumerate(head._named)
            }
            groups = head._optimizer.state_dict()["param_groups"]
            head._optimizer.load_state_dict({"state": states, "param_groups": groups})
        return head


def value_loss(
    loss: PolicyGradientLoss, values: torch.Tensor, inputs: Inputs
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Coefficient times the sum over tokens of weight x 1/2 max((V - R)^2, (V_clip - R)^2).

    V_clip = V_old + clamp(V - V_old, -clip, clip); with `value_clip` 0 it is V. The loss of PPO's reference code
    (openai/baselines, `ppo2`; Engstrom et al., arXiv 2005.12729, section 3).

    Args:
        loss: The loss, with `value_coef` and `value_clip`.
        values: [N] with gradient.
        inputs: Micro-batch with values and returns.

    Returns:
        The sum, with gradient; and sums over tokens by name, without.
    """
    assert inputs.values is not None and inputs.returns is not None, "checked when the batch came"
    errors = (values - inputs.returns) ** 2
    largest = errors
    if loss.value_clip:
        held = inputs.values + (values - inputs.values).clamp(-loss.value_clip, loss.value_clip)
        largest = torch.maximum(errors, (held - inputs.returns) ** 2)
    losses = inputs.weights * (0.5 * largest)
    with torch.no_grad():
        sums = {"value_loss": losses.sum(), "value_clip_fraction": (largest > errors).sum()}
    return loss.value_coef * losses.sum(), sums
