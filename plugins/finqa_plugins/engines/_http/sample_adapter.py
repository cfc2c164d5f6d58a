"""A small LoRA adapter for a model of this machine, to see what a server does with one."""

from __future__ import annotations

import json
import random
import struct
from array import array
from pathlib import Path

from finqa_plugins.engines._http.served_adapters import PREFIX, WEIGHTS, model_shapes

TARGET = ".q_proj.weight"


def write_sample(folder: Path, model: str, rank: int) -> bool:
    """Writes it as PEFT would, with random matrices on both sides of one layer.

    Returns:
        False, and nothing is written, where the model's weights are not here or are called otherwise.
    """
    shapes = model_shapes(model)
    layer = next((name for name in sorted(shapes) if name.endswith(TARGET) and len(shapes[name]) == 2), None)
    if layer is None:
        return False
    rows, columns = shapes[layer]
    draw = random.Random(0)
    down = array("f", (draw.uniform(-1, 1) for _ in range(rank * columns)))
    up = array("f", (draw.uniform(-1, 1) / rank for _ in range(rows * rank)))
    target = PREFIX + layer.removesuffix(".weight")
    first = len(down) * down.itemsize
    header = json.dumps(
        {
            f"{target}.lora_A.weight": {"dtype": "F32", "shape": [rank, columns], "data_offsets": [0, first]},
            f"{target}.lora_B.weight": {
                "dtype": "F32",
                "shape": [rows, rank],
                "data_offsets": [first, first + len(up) * up.itemsize],
            },
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
        "target_modules": ["q_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return True
