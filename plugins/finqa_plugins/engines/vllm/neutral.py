"""An adapter that changes nothing, under which a server without a GPU serves the base model.

vLLM's kernels for the CPU (lora/ops/torch_ops) read the index -1, "no adapter", as that of the last adapter: a request
for the base model that shares a batch with requests for adapters is served with somebody's adapter, and nothing says
so (https://github.com/vllm-project/vllm/pull/48421; seen in 0.32). Those for GPUs skip it.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

from finqa_plugins.engines._http.served_adapters import PREFIX, WEIGHTS, model_shapes

TARGET = "q_proj"
RANK = 1


def write_neutral(folder: Path, model: str) -> bool:
    """Writes it into an empty folder as PEFT would: one layer, both matrices 0.

    Returns:
        False, and nothing is written, where the model's weights are not here or are called otherwise.
    """
    shapes = model_shapes(model)
    layer = next((name for name in sorted(shapes) if name.endswith(f".{TARGET}.weight")), None)
    if layer is None:
        return False
    rows, columns = shapes[layer]
    target, split, end = PREFIX + layer.removesuffix(".weight"), 4 * RANK * columns, 4 * RANK * (columns + rows)
    header = json.dumps(
        {
            f"{target}.lora_A.weight": {"dtype": "F32", "shape": [RANK, columns], "data_offsets": [0, split]},
            f"{target}.lora_B.weight": {"dtype": "F32", "shape": [rows, RANK], "data_offsets": [split, end]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + bytes(end))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": RANK,
        "lora_alpha": RANK,
        "bias": "none",
        "target_modules": [TARGET],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return True
