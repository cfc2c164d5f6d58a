"""Checks PEFT LoRA folders before they are sent to a server, and writes small ones, without torch or safetensors."""

from __future__ import annotations

import json
import random
import re
import struct
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.errors import EngineError
from finqa_cli.placement.known_models import text_settings

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
TARGET = "q_proj"
"""The layer that a small adapter changes."""

LARGEST_HEADER = 64 * 2**20
_LAYER = re.compile(r"\.\d+\.")

Shapes = Mapping[str, tuple[int, ...]]
"""Tensor name -> shape."""


def check_adapter(folder: Path, base: Shapes, *, max_rank: int) -> bool:
    """Checks that a server with this base model and rank can serve an adapter; a wrong adapter can crash the server.

    Args:
        folder: Folder with `adapter_config.json` and `adapter_model.safetensors`.
        base: Shapes of the base model's weights (`model_shapes`); empty: not known here.
        max_rank: Largest rank that the server was started for.

    Returns:
        Whether the adapter changes anything: False when every lora_B is zero, as in an untrained adapter.

    Raises:
        EngineError: Files are missing or damaged, the rank is too large, or it belongs to another base model.
    """
    rank = _rank(folder)
    if rank > max_rank:
        raise EngineError(
            f"The adapter {folder} has rank {rank}, but the engine serves ranks up to {max_rank}.",
            remedy=f"--set lora.rank={rank}, and a server with --max-lora-rank {rank} or more",
        )
    path = folder / WEIGHTS
    try:
        header, start = _header(path)
        shapes = _shapes(header)
        ups = {name for name in shapes if name.endswith(".lora_B.weight")}
        if not ups:
            raise EngineError(f"{path} contains no LoRA matrices.")
        _match(folder, shapes, base, rank)
        return any(_is_not_zero(path, start, header[name]["data_offsets"]) for name in sorted(ups))
    except OSError as error:
        raise EngineError(f"The adapter {folder} has no readable {WEIGHTS}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise EngineError(f"{path} is damaged: {error!r}.") from error


def model_shapes(model: str) -> Shapes:
    """Shapes of the weights in a model folder; empty if the folder or its safetensors files are not on this machine."""
    folder = Path(model)
    found: dict[str, tuple[int, ...]] = {}
    try:
        for path in sorted(folder.glob("*.safetensors")) if folder.is_dir() else ():
            found |= _shapes(_header(path)[0])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return {}  # the server reads the files itself, and reports an error if it cannot
    return found


def vocabulary(model: str) -> int | None:
    """`vocab_size` of the text decoder in the config.json of a model folder; None if it is not on this machine."""
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        size = text_settings(config).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) and size > 0 else None


def write_adapter(folder: Path, model: str, *, rank: int, zeros: bool = False) -> bool:
    """Writes a small adapter into an empty folder as PEFT would: one layer, with random matrices or with zeros.

    Args:
        folder: Folder to write into.
        model: Model folder that the adapter is for.
        rank: Rank of the matrices.
        zeros: Both matrices are 0, so that the adapter changes nothing.

    Returns:
        False, and nothing is written, if the model's weights are not on this machine or have no layer `TARGET`.
    """
    shapes = model_shapes(model)
    fitting = (name for name in sorted(shapes) if name.endswith(f".{TARGET}.weight") and len(shapes[name]) == 2)
    layer = next(fitting, None)
    if layer is None:
        return False
    rows, columns = shapes[layer]
    target, split, end = PREFIX + layer.removesuffix(".weight"), 4 * rank * columns, 4 * rank * (columns + rows)
    draw = random.Random(0)
    down = array("f", (0.0 if zeros else draw.uniform(-1, 1) for _ in range(rank * columns)))
    up = array("f", (0.0 if zeros else draw.uniform(-1, 1) / rank for _ in range(rows * rank)))
    header = json.dumps(
        {
            f"{target}.lora_A.weight": {"dtype": "F32", "shape": [rank, columns], "data_offsets": [0, split]},
            f"{target}.lora_B.weight": {"dtype": "F32", "shape": [rows, rank], "data_offsets": [split, end]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)  # data begin at a multiple of 8
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + down.tobytes() + up.tobytes())
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [TARGET],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return True


def _rank(folder: Path) -> int:
    path = folder / "adapter_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kind, rank = str(config["peft_type"]), int(config["r"])
    except OSError as error:
        raise EngineError(f"The adapter {folder} has no readable adapter_config.json: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{path} is not the configuration of a LoRA adapter: {error!r}.") from error
    if kind != "LORA" or rank < 1:
        raise EngineError(f"{path} is not the configuration of a LoRA adapter: {kind} of rank {rank}.")
    return max([rank, *(int(value) for value in (config.get("rank_pattern") or {}).values())])


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Header of a safetensors file, and the byte where its data begin (https://huggingface.co/docs/safetensors)."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > LARGEST_HEADER:
            raise ValueError(f"a header of {size} bytes")
        header = json.loads(file.read(size))
    end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    if path.stat().st_size < 8 + size + end:
        raise ValueError("it is cut off")
    return header, 8 + size


def _shapes(header: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def _match(folder: Path, shapes: Shapes, base: Shapes, rank: int) -> None:
    """Compares the shape of each matrix with that of the base weight that it changes."""
    targets = {name: name.removeprefix(PREFIX).removesuffix(".lora_B.weight") for name in shapes if ".lora_B." in name}
    scheme = {_LAYER.sub(".0.", name) for name in base}
    if not any(_LAYER.sub(".0.", f"{target}.weight") in scheme for target in targets.values()):
        return  # the base model's files name their weights differently, or are not here: the server has to check
    for name, target in sorted(targets.items()):
        weight = base.get(f"{target}.weight")
        if weight is None:
            raise EngineError(f"The adapter {folder} belongs to another base model: this one has no layer {target}.")
        down, up = shapes[name.replace(".lora_B.", ".lora_A.")], shapes[name]
        if down[0] > rank or (up[0], down[-1]) != (weight[0], weight[-1]) or up[-1] != down[0]:
            raise EngineError(
                f"The adapter {folder} belongs to another base model or rank: {target} is {weight}, its matrices are "
                f"{up} and {down}."
            )


def _is_not_zero(path: Path, start: int, offsets: list[int]) -> bool:
    with path.open("rb") as file:
        file.seek(start + offsets[0])
        left = offsets[1] - offsets[0]
        while left > 0 and (data := file.read(min(left, 2**20))):
            if data.translate(None, b"\x00\x80"):  # neither 0.0 nor -0.0
                return True
            left -= len(data)
    return False
