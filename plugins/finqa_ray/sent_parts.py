"""Parts of folders that this process sends: each is put into the object store once for all nodes that need it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from finqa_cli.errors import StorageError
from finqa_ray.bfloat16_weights import round_file
from finqa_ray.folder_files import Bytes, Part, cut, list_files, read_part, spans

MOST_BYTES = 256 * 2**20
"""Bytes of the latest parts, which stay in the object store: nodes that load a version at the same time need the same
parts. So only a small part of a large model is in the store at any time."""

Sent = tuple[Part, Any]
"""A part, and a reference to its content."""

_Key = tuple[Path, int, bool]


class SentParts:
    """The parts of folders whose content does not change."""

    def __init__(self, put: Callable[[Bytes], Any], most_bytes: int = MOST_BYTES) -> None:
        """Starts without parts.

        Args:
            put: Stores a content; the reference that it returns keeps the content alive.
            most_bytes: Largest number of bytes that are kept.
        """
        self._put, self._most = put, most_bytes
        self._kept: OrderedDict[_Key, tuple[Sent, ...]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, folder: Path, *, rounded: bool = False) -> Iterator[Sent]:
        """Yield the parts of all files of a folder, each of which is stored when it is reached.

        Args:
            folder: The folder.
            rounded: Whether float32 tensors of `*.safetensors` are sent in bfloat16; then whole files are in memory.

        Raises:
            StorageError: The folder cannot be read, or a file of weights is damaged.
        """
        for name, size in list_files(folder).items():
            if rounded and name.endswith(".safetensors"):
                yield from self._once((folder / name, 0, True), partial(_read_rounded, folder, name))
                continue
            for start, count in spans(size):
                yield from self._once((folder / name, start, False), partial(_read_one, folder, name, start, count))

    def _once(self, key: _Key, read: Callable[[], list[tuple[Part, Bytes]]]) -> tuple[Sent, ...]:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = tuple((part, self._put(content)) for part, content in read())
                self._bytes += _size(self._kept[key])
            found = self._kept[key]
            self._kept.move_to_end(key)
            while self._bytes > self._most and len(self._kept) > 1:
                self._bytes -= _size(self._kept.popitem(last=False)[1])
            return found


def _size(sent: tuple[Sent, ...]) -> int:
    return sum(part.size for part, _ in sent)


def _read_one(folder: Path, name: str, start: int, count: int) -> list[tuple[Part, Bytes]]:
    return [read_part(folder, name, start, count)]


def _read_rounded(folder: Path, name: str) -> list[tuple[Part, Bytes]]:
    try:
        content = np.fromfile(folder / name, dtype=np.uint8)
    except OSError as error:
        raise StorageError(f"Reading {str(folder / name)!r} failed: {error}") from error
    return list(cut(name, round_file(name, content)))
