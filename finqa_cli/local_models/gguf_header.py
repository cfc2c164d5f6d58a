"""Reads the header of a GGUF file with limits, before any library reads the file.

GGUF files come from strangers. Each count and length in the header is checked against the size of the file, so that
damaged or hostile files end in an error instead of in a traceback or in full memory. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError

MAX_KEYS = 10_000
MAX_TENSORS = 200_000
MAX_DIMENSIONS = 4
MAX_KEY_BYTES = 65_535
MAX_STRING_BYTES = 2**24

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

TENSOR_TYPES = {
    **{0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 28: ("F64", 1, 8)},
    **{24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8)},
    **{2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24)},
    **{8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110)},
    **{12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292)},
    **{16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50)},
    **{20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136)},
    **{29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17)},
}
"""Type number -> name, values in a block, and bytes of a block."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the file.

    Attributes:
        name: Its name in llama.cpp.
        shape: Sizes, the fastest-moving one first.
        kind: Name of its storage type, such as `Q4_K`.
        offset: First byte, from the start of the data.
        size: Bytes.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    size: int

    @property
    def elements(self) -> int:
        """Number of values."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Header of a GGUF file whose tensors lie within the file.

    Attributes:
        path: The file.
        metadata: Values by key: numbers, truth values, strings, and lists of them.
        tensors: All tensors.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        """Name of the architecture in llama.cpp."""
        return self.text("general.architecture")

    @property
    def parameters(self) -> int:
        """Number of values in all tensors."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def kinds(self) -> str:
        """The storage types of the values, the most frequent one first, such as `Q4_1, Q8_0, F32`."""
        counted: dict[str, int] = {}
        for tensor in self.tensors:
            counted[tensor.kind] = counted.get(tensor.kind, 0) + tensor.elements
        return ", ".join(sorted(counted, key=counted.__getitem__, reverse=True))

    def text(self, key: str) -> str:
        """Return a string of the metadata; empty if it is absent or of another type."""
        value = self.metadata.get(key, "")
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int | None:
        """Return a whole number of the metadata; None if it is absent or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


class _Damaged(Exception):
    """What is wrong with the header."""


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a file and check that all tensors are inside the file.

    Raises:
        ConfigError: The file cannot be read, or is not a complete GGUF file of version 2 or 3 with a language model.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = _Reader(data).header(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "") or "it is empty"  # an empty file cannot be mapped: a ValueError
        raise ConfigError(f"{path} cannot be read: {reason}.", remedy="give the path of a .gguf file") from error
    except (_Damaged, struct.error, MemoryError, OverflowError) as error:
        raise ConfigError(
            f"{path} is not a usable GGUF file: {error}.",
            remedy="copy or download the file again, and compare its checksum",
        ) from error
    if (kind := header.text("general.type")) not in ("", "model"):
        raise ConfigError(
            f"{path} is not a language model: its type is {kind[:60]!r}, not 'model'.",
            remedy="give the file of the whole model",
        )
    if (header.number("split.count") or 1) > 1:
        raise ConfigError(
            f"{path} is one of several parts of a model.",
            remedy="give the whole model: llama-gguf-split of llama.cpp merges its parts",
        )
    return header


class _Reader:
    """Reads values one after another; each length is checked against the rest of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0

    def header(self, path: Path) -> GgufFile:
        if self._bytes(4) != b"GGUF":
            raise _Damaged("it does not begin with the letters GGUF")
        version = self._scalar("I")
        if version not in (2, 3):
            raise _Damaged(f"it has format version {version}; versions 2 and 3 of little-endian files can be read")
        tensors, keys = self._scalar("Q"), self._scalar("Q")
        if tensors > MAX_TENSORS or keys > MAX_KEYS:
            raise _Damaged(f"its header announces {tensors} tensors and {keys} keys")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string(MAX_KEY_BYTES)
            metadata[key] = self._value(self._scalar("I"))
        listed = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
            raise _Damaged(f"its alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        for tensor in listed:
            if start + tensor.offset + tensor.size > self._size:
                raise _Damaged(f"the tensor {_shown(tensor.name)} extends beyond the end of the file, so it is cut")
        if not listed:
            raise _Damaged("it contains no tensors")
        if not isinstance(metadata.get("general.architecture"), str):
            raise _Damaged("it does not name its architecture")
        if len({tensor.name for tensor in listed}) < len(listed):
            raise _Damaged("two of its tensors have the same name")
        return GgufFile(path, metadata, tuple(listed))

    def _tensor(self) -> GgufTensor:
        name = self._string(MAX_KEY_BYTES)
        count = self._scalar("I")
        if not 1 <= count <= MAX_DIMENSIONS:
            raise _Damaged(f"the tensor {_shown(name)} has {count} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(count))
        kind, offset = self._scalar("I"), self._scalar("Q")
        if kind not in TENSOR_TYPES:
            raise _Damaged(f"the tensor {_shown(name)} has the unknown type {kind}")
        label, block, size = TENSOR_TYPES[kind]
        if not all(shape) or shape[0] % block:
            raise _Damaged(f"the tensor {_shown(name)} has the shape {shape}, which {label} cannot store")
        return GgufTensor(name, shape, label, offset, prod(shape) // block * size)

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string(MAX_STRING_BYTES)
        if kind != _ARRAY:
            raise _Damaged(f"its metadata contains a value of the unknown type {kind}")
        of, count = self._scalar("I"), self._scalar("Q")
        if of in _SCALARS:
            layout = struct.Struct(f"<{self._within(count)}{_SCALARS[of]}")
            return list(layout.unpack(self._bytes(layout.size)))
        if of != _STRING:
            raise _Damaged(f"its metadata contains a list of the type {of}")
        self._within(8 * count)
        return [self._string(MAX_STRING_BYTES) for _ in range(count)]

    def _scalar(self, code: str) -> Any:
        layout = struct.Struct(f"<{code}")
        return layout.unpack(self._bytes(layout.size))[0]

    def _string(self, most: int) -> str:
        length = self._scalar("Q")
        if length > most:
            raise _Damaged(f"its header contains a text of {length} bytes")
        try:
            return self._bytes(length).decode("utf-8")
        except UnicodeDecodeError:
            raise _Damaged("its header contains a text that is not UTF-8") from None

    def _bytes(self, count: int) -> bytes:
        self._within(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def _within(self, count: int) -> int:
        if count > self._size - self._at:
            raise _Damaged("its header extends beyond the end of the file, so it is cut or damaged")
        return count


def _shown(name: str) -> str:
    return repr(name[:60])
