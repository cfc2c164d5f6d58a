"""Data sets for the loopback hub, and what the tests of fetching share."""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from finqa_cli.data.fetch import FetchReport
from finqa_cli.data.fetch.retries import Patience

COMMIT = "a" * 40
IMPATIENT = Patience(attempts=4, first_pause_s=0.01, longest_pause_s=3.0, connect_s=5.0, read_s=5.0)


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tar_gz(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


SNORKEL = {
    ".gitattributes": b"*.json filter=lfs\n",
    "README.md": b"---\nlicense: apache-2.0\n---\n",
    "benchmark_questions/finqa.csv": b"id,user_query\n1,what?\n",
    "input_companies/acme corp/us_gaap_Leases.json": b'[{"row": "a"}]',
    "input_companies/acme corp/us_gaap_Leases.txt": b"not wanted",
    "input_companies/tables_cleaned_all_companies.json": noise(300_000),
}
FINQA = {
    "LICENSE": b"MIT License\n",
    "code/evaluate.py": b"not wanted",
    "dataset/train.json": noise(200_000, 1),
    "dataset/dev.json": b"[1]",
    "dataset/test.json": b"[2]",
}


@dataclass
class Watch:
    lines: list[str] = field(default_factory=list)
    moves: list[tuple[int, int]] = field(default_factory=list)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def moved(self, done: int, total: int) -> None:
        self.moves.append((done, total))


Fetch = Callable[..., FetchReport]


def signed_out(patch: pytest.MonkeyPatch) -> None:
    """Takes away the tokens and proxies of the person who runs the tests."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GITHUB_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        patch.delenv(name, raising=False)
        patch.delenv(name.lower(), raising=False)
