"""Zip archives, as ConvFinQA is published."""

from __future__ import annotations

import io
import json
import stat
import zipfile
from pathlib import Path

import pytest
from fetch_cases import COMMIT, Fetch, noise
from fixtures.hub_server import HubServer
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.data.fetch.unpack import unpack
from finqa_cli.errors import DataError

LINK, PIPE = stat.S_IFLNK << 16, stat.S_IFIFO << 16


def zipped(*members: tuple[str, bytes, int]) -> bytes:
    """A zip file of names, contents and attributes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, attributes in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = attributes
            archive.writestr(info, content)
    return buffer.getvalue()


PUBLISHED = {
    "data/train.json": json.dumps([1, 2, 3]).encode(),
    "data/dev.json": noise(2_500_000),
    "data/test_private.json": b"[]",
}


def test_the_published_form_is_unpacked_without_the_forks_of_macos(bring: Fetch, hub: HubServer, data: Path) -> None:
    entries = [("data/", b"", stat.S_IFDIR << 16), *((name, content, 0) for name, content in PUBLISHED.items())]
    archive = zipped(*entries, ("__MACOSX/data/._train.json", b"fork", 0))
    hub.add("czyssrs/ConvFinQA", {"README.md": b"#", "data.zip": archive, "code/main.py": b""}, commit=COMMIT)
    manifest = bring("convfinqa").manifest
    assert manifest.unpacked is not None and manifest.unpacked.files == len(PUBLISHED)
    assert {name: (data / name).read_bytes() for name in PUBLISHED} == PUBLISHED
    assert not (data / "__MACOSX").exists() and not (data / "code").exists()
    (data / "data/dev.json").write_bytes(b"spoilt")
    assert bring("convfinqa").repaired == ("data/dev.json",)
    assert (data / "data/dev.json").read_bytes() == PUBLISHED["data/dev.json"]


@pytest.mark.parametrize(
    ("name", "attributes"),
    [("../up", 0), ("/etc/passwd", 0), ("a/../../up", 0), ("fetch.json", 0), ("x.zip", 0), ("ok", 0), ("../up/", 0),
     ("link", LINK), ("pipe", PIPE)],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_entries_are_refused(tmp_path: Path, name: str, attributes: int) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "x.zip").write_bytes(zipped(("ok", b"1", 0), (name, b"/etc/passwd", attributes)))
    with pytest.raises(DataError):
        unpack(folder / "x.zip", taken=["x.zip"])
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in", "ok", "x.zip"]


def test_bombs_stop_at_the_bound(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(zipped(("a", bytes(600), 0), ("b", bytes(600), 0)))
    with pytest.raises(DataError, match="more than 9 entries or 1000 bytes"):
        unpack(tmp_path / "x.zip", taken=[], max_members=9, max_bytes=1000)
    assert not (tmp_path / "b").exists()


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    content = bytearray(zipped(("a", b"1", 0)))
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # flags of the local and of the central header
        content[content.index(signature) + place] |= 1
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(DataError, match="is encrypted"):
        unpack(tmp_path / "x.zip", taken=[])


@given(st.binary(max_size=60), st.integers(min_value=0, max_value=300))
def test_no_bytes_crash_it(tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    whole = zipped(("a", b"1" * 50, 0), ("b/c", b"2", 0))
    for changed in (whole[:at] + noise + whole[at:], whole[:at] + noise + whole[at + len(noise) :]):
        (folder / "x.zip").write_bytes(changed)
        try:
            unpack(folder / "x.zip", taken=[], max_bytes=2**20)
        except DataError as error:
            assert error.message
