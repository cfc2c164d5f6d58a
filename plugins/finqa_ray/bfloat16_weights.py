"""Weights in bfloat16 for transport: half the bytes, for engines that round them to it anyway.

safetensors files are read and written without torch, which the controller may not have. Format: eight bytes
with the length of a JSON header, the header, and the tensors (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from finqa_cli.errors import StorageError
from finqa_ray.folder_files import Bytes

_LENGTH = 8
_ALIGNMENT = 8


def round_file(name: str, data: Bytes) -> Bytes:
    """Return the content of a safetensors file with its float32 tensors rounded.

    Args:
        name: Name of the file, for errors.
        data: [N] uint8 content.

    Raises:
        StorageError: The content is damaged.
    """
    try:
        (length,) = struct.unpack("<Q", data[:_LENGTH].tobytes())
        header: dict[str, Any] = json.loads(data[_LENGTH : _LENGTH + length].tobytes())
        body = data[_LENGTH + length :]
        tensors = [(key, facts) for key, facts in header.items() if key != "__metadata__"]
        parts: list[Bytes] = []
        end = 0
        for key, facts in sorted(tensors, key=lambda pair: pair[1]["data_offsets"][0]):
            first, last = facts["data_offsets"]
            part = body[first:last]
            if part.nbytes != last - first:
                raise ValueError(f"it ends within {key}")
            if facts["dtype"] == "F32":
                part = round_to_bfloat16(part.view("<u4")).view(np.uint8)
                facts = {**facts, "dtype": "BF16"}
            header[key] = {**facts, "data_offsets": [end, end + part.nbytes]}
            end += part.nbytes
            parts.append(part)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{name} is no file of safetensors: {error}") from error
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH + len(text)) % _ALIGNMENT)
    start = np.frombuffer(struct.pack("<Q", len(text)) + text, dtype=np.uint8)
    return np.concatenate([start, *parts])


def round_to_bfloat16(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16 of each float32 [N], ties to even; a NaN stays a NaN."""
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(is_nan, quiet, rounded).astype("<u2")
