"""Rounding of weights for transport equals torch's, and leaves everything else alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import StorageError
from finqa_ray.bfloat16_weights import round_file, round_to_bfloat16

torch = pytest.importorskip("torch", reason="needs finqa[train]")


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
def test_each_number_is_rounded_as_torch_rounds_it(bits: list[int]) -> None:
    array = np.array(bits, dtype=np.uint32)
    ours = torch.from_numpy(round_to_bfloat16(array).view(np.int16).copy()).view(torch.bfloat16)
    theirs = torch.from_numpy(array.view(np.float32).copy()).to(torch.bfloat16)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours[~ours.isnan()], theirs[~theirs.isnan()])


def test_a_file_of_weights_is_halved_and_other_tensors_stay(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = {
        "model.b.lora_A.weight": torch.randn(64, 33),
        "model.a.lora_B.weight": torch.randn(1000),
        "steps": torch.arange(7),
        "half": torch.randn(5).to(torch.bfloat16),
        "empty": torch.zeros(0),
    }
    save_file(weights, tmp_path / "whole.safetensors", metadata={"format": "pt"})
    whole = np.fromfile(tmp_path / "whole.safetensors", dtype=np.uint8)
    rounded = round_file("whole.safetensors", whole)
    rounded.tofile(tmp_path / "rounded.safetensors")
    found = load_file(tmp_path / "rounded.safetensors")
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        wanted = tensor.to(torch.bfloat16) if tensor.dtype == torch.float32 else tensor
        assert found[name].dtype == wanted.dtype and torch.equal(found[name], wanted)
    assert rounded.nbytes < 0.55 * whole.nbytes


@given(st.binary(max_size=60))
def test_a_damaged_file_of_weights_is_an_error(data: bytes) -> None:
    with pytest.raises(StorageError, match="no file of safetensors"):
        round_file("adapter_model.safetensors", np.frombuffer(data, dtype=np.uint8))


def test_a_tensor_beyond_the_end_of_its_file_is_an_error(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(10)}, tmp_path / "a.safetensors")
    data = np.fromfile(tmp_path / "a.safetensors", dtype=np.uint8)
    with pytest.raises(StorageError, match="ends within"):
        round_file("a.safetensors", data[:-4])
