"""Moves the frozen weights of a model to main memory while an engine uses the device, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn


class FrozenWeights:
    """The weights that training does not change, so that a copy in main memory stays valid.

    The copy is made once. Going to sleep then only frees the device, and waking copies in one direction: about 0.6 s
    for 28 GB over PCIe 5 from pinned memory.

    Args:
        parameters: Parameters of the model; trained ones stay where they are.
        to_host: Returns a copy in main memory, pinned where that makes copies faster.
        to_device: Returns a copy on the device.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        to_host: Callable[[Tensor], Tensor],
        to_device: Callable[[Tensor], Tensor],
    ) -> None:
        self._frozen = list({id(one): one for one in parameters if not one.requires_grad}.values())
        self._to_host, self._to_device = to_host, to_device
        self._host: list[Tensor] = []
        self.asleep = False

    def sleep(self) -> None:
        """Free the device. Idempotent."""
        if self.asleep:
            return
        if not self._host:
            self._host = [self._to_host(one.data) for one in self._frozen]
        for one, copy in zip(self._frozen, self._host, strict=True):
            one.data = copy
        self.asleep = True

    def wake(self) -> None:
        """Move the weights to the device. Idempotent."""
        if not self.asleep:
            return
        for one, copy in zip(self._frozen, self._host, strict=True):
            one.data = self._to_device(copy)
        self.asleep = False
