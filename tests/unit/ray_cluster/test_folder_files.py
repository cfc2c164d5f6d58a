"""Folders in parts: what arrives is what was sent, or nothing, and few parts are in memory at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import StorageError
from finqa_ray import folder_files
from finqa_ray.folder_files import Bytes, Delivered, Inbox, Part, list_files
from finqa_ray.node_folder import NodeFolder, remove_left
from finqa_ray.sent_parts import SentParts

NAMES = st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8})?\.(json|safetensors)", fullmatch=True)
PART = 512


class Store:
    """Counts the bytes that are kept, as an object store does."""

    def __init__(self) -> None:
        self.puts = self.now = self.most = 0

    def put(self, content: Bytes) -> Kept:
        self.puts += 1
        self.now += content.nbytes
        self.most = max(self.most, self.now)
        return Kept(self, content.copy())


class Kept:
    """A content that is kept as long as something refers to it."""

    def __init__(self, store: Store, content: Bytes) -> None:
        self.store, self.content = store, content

    def __del__(self) -> None:
        self.store.now -= self.content.nbytes


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_files, "PART_BYTES", PART)
        yield


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    folder.mkdir(exist_ok=True)
    return folder


def send(parts: SentParts, folder: Path, inbox: Inbox, number: int = 1) -> Delivered:
    for part, kept in parts.of(folder):
        inbox.receive(number, part, kept.content)
    return Delivered(delivery=number, sizes=list_files(folder))


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in list_files(folder)}


@given(st.dictionaries(NAMES, st.binary(max_size=2000), max_size=5), st.randoms(use_true_random=False))
def test_a_folder_arrives_as_it_was_sent_in_any_order_of_its_parts(files: dict[str, bytes], random: object) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        sent = write(Path(temporary, "sent"), files)
        parts = list(SentParts(Store().put).of(sent))
        random.shuffle(parts)  # type: ignore[attr-defined]
        inbox = Inbox(Path(temporary, "here"))
        for part, kept in parts:
            assert part.size <= PART
            inbox.receive(3, part, kept.content)
        received = inbox.take(Delivered(delivery=3, sizes=list_files(sent)), "v1")
        assert bytes_of(received) == bytes_of(sent) == files
        assert [path.name for path in Path(temporary, "here").iterdir()] == ["v1"]


def test_four_nodes_share_the_parts_of_a_large_model_and_the_store_never_has_much_of_it(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(200 * PART)
    sent, store = write(tmp_path / "sent", {"model.safetensors": content}), Store()
    parts = SentParts(store.put, most_bytes=4 * PART)
    inboxes = [Inbox(tmp_path / str(number)) for number in range(4)]
    deliveries = [parts.of(sent) for _ in inboxes]
    for together in zip(*deliveries, strict=True):
        for inbox, (part, kept) in zip(inboxes, together, strict=True):
            inbox.receive(1, part, kept.content)
    delivered = Delivered(delivery=1, sizes=list_files(sent))
    assert all(inbox.take(delivered, "v1").joinpath("model.safetensors").read_bytes() == content for inbox in inboxes)
    assert store.puts == 200, "each part is read and put once for all four"
    assert store.most <= 6 * PART, "four that are kept, one that is new, and one that a receiver still has"
    late = Inbox(tmp_path / "late")
    late.take(send(parts, sent, late), "v1")
    assert store.puts > 390 and store.most <= 6 * PART


def damage(part: Part, content: Bytes) -> dict[str, Bytes]:
    changed = content.copy()
    changed[len(changed) // 2] ^= 1
    return {"changed": changed, "truncated": content[:-1], "empty": content[:0], "longer": np.append(content, content)}


@pytest.mark.parametrize("how", ["changed", "truncated", "empty", "longer"])
def test_a_part_with_other_bytes_is_refused_and_replaces_nothing(how: str, tmp_path: Path) -> None:
    sent = write(tmp_path / "sent", {"weights": bytes(range(256)) * 5})
    inbox = Inbox(tmp_path / "node")
    parts = SentParts(Store().put)
    kept_version = inbox.take(send(parts, sent, inbox), "v00001")
    (_, second, *_) = list(parts.of(sent))
    part, kept = second
    with pytest.raises(StorageError, match="weights arrived with other bytes"):
        inbox.receive(2, part, damage(part, kept.content)[how])
    with pytest.raises(StorageError, match="v00001 arrived incomplete: weights"):
        inbox.take(Delivered(delivery=2, sizes=list_files(sent)), "v00001")
    assert bytes_of(kept_version) == bytes_of(sent)


def test_a_folder_that_lacks_a_part_or_has_it_twice_is_refused(tmp_path: Path) -> None:
    sent = write(tmp_path / "sent", {"weights": bytes(2 * PART), "config": b"{}"})
    inbox = Inbox(tmp_path / "node")
    parts = list(SentParts(Store().put).of(sent))
    delivered = Delivered(delivery=1, sizes=list_files(sent))
    for part, kept in [*parts[:2], parts[1]]:
        inbox.receive(1, part, kept.content)
    with pytest.raises(StorageError, match="incomplete: weights"):
        inbox.take(delivered, "v1")
    with pytest.raises(StorageError, match="it has other files"):
        inbox.take(replace(delivered, sizes={"config": 2}), "v1")
    inbox.receive(1, *(parts[2][0], parts[2][1].content))
    with pytest.raises(StorageError, match="incomplete"):
        inbox.take(replace(delivered, delivery=2), "v1")
    assert bytes_of(inbox.take(delivered, "v1")) == bytes_of(sent)


def test_a_delivery_that_was_broken_off_cannot_end_in_a_later_one(tmp_path: Path) -> None:
    sent = write(tmp_path / "sent", {"weights": bytes(2 * PART)})
    inbox = Inbox(tmp_path / "node")
    (first, kept), (second, last) = SentParts(Store().put).of(sent)
    inbox.receive(1, first, kept.content)
    inbox.receive(2, first, kept.content)
    with pytest.raises(StorageError, match="delivery 1, which was broken off"):
        inbox.receive(1, second, last.content)
    inbox.receive(2, second, last.content)
    inbox.take(Delivered(delivery=2, sizes=list_files(sent)), "v1")


def test_a_file_that_becomes_shorter_while_it_is_sent_is_an_error(tmp_path: Path) -> None:
    sent = write(tmp_path / "sent", {"weights": bytes(3 * PART)})
    parts = SentParts(Store().put).of(sent)
    next(parts)
    os.truncate(sent / "weights", PART + 1)
    with pytest.raises(StorageError, match="weights has changed while it was read"):
        list(parts)


def test_only_the_named_versions_stay(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for name in ("start", "v00008", "v00009", "v00010"):
        (tmp_path / name).mkdir()
    inbox.keep(["v00009"])
    assert {path.name for path in tmp_path.iterdir()} == {"start", "v00009"}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"There is no folder .*nothere"):
        list(SentParts(Store().put).of(tmp_path / "nothere"))


def test_the_folder_of_a_killed_process_is_removed_by_the_next_and_that_of_a_live_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "from finqa_ray.node_folder import NodeFolder; f = NodeFolder(); print(f.path); input()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    other = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None and other.stdout is not None
    theirs = Path(other.stdout.readline().strip())
    mine = NodeFolder()
    assert theirs.is_dir() and theirs.stat().st_mode & 0o777 == 0o700
    other.kill()
    other.communicate()
    remove_left(tmp_path)
    assert not theirs.exists() and mine.path.is_dir()
    mine.close()
    mine.close()
    assert not list(tmp_path.iterdir())
