"""Folders as bytes: what arrives is what was sent, or nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import StorageError
from finqa_plugins.ray_cluster.folder_files import FolderFiles, read_folder, write_folder

NAMES = st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8})?\.(json|safetensors)", fullmatch=True)


def bytes_of(content: FolderFiles) -> dict[str, bytes]:
    return {name: data.tobytes() for name, data in content.files.items()}


@given(st.dictionaries(NAMES, st.binary(max_size=2000), max_size=5))
def test_a_folder_arrives_as_it_was_sent(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        sent = Path(temporary, "sent")
        sent.mkdir()
        for name, data in files.items():
            (sent / name).parent.mkdir(exist_ok=True)
            (sent / name).write_bytes(data)
        content = read_folder(sent)
        received = read_folder(write_folder(content, Path(temporary, "here", "received")))
        assert bytes_of(content) == bytes_of(received) == files
        assert received.digest == content.digest
        assert content.size == sum(map(len, files.values()))


def test_other_bytes_than_were_sent_replace_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "version"
    kept.mkdir()
    (kept / "weights").write_bytes(b"whole")
    content = read_folder(kept)
    content.files["weights"] = np.frombuffer(b"wrong", dtype=np.uint8)
    with pytest.raises(StorageError, match="weights arrived with other bytes"):
        write_folder(content, kept)
    assert (kept / "weights").read_bytes() == b"whole" and [path.name for path in tmp_path.iterdir()] == ["version"]


def test_a_folder_replaces_the_one_that_was_there(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
    write_folder(read_folder(tmp_path / "new"), tmp_path / "old")
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["new"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"There is no folder .*nothere"):
        read_folder(tmp_path / "nothere")
