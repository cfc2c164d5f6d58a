from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from fetch_cases import COMMIT, Fetch, Watch, noise, tar_gz
from fixtures.hub_server import HubServer
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.data.fetch import read_manifest
from finqa_cli.data.fetch.unpack import unpack
from finqa_cli.errors import DataError, StorageError

FILES = {
    "data/train_finqa.csv": b"id,question\n",
    "data/company_tables/acme/a.json": noise(3_000_000),
    "data/company_tables/acme/empty.json": b"",
}


@pytest.fixture
def rllm(hub: HubServer) -> HubServer:
    hub.add("rLLM/finqa", {"README.md": b"#", "data.tar.gz": tar_gz(FILES)}, commit=COMMIT, licence="apache-2.0")
    return hub


def archive_of(folder: Path, *members: tarfile.TarInfo) -> Path:
    path = folder / "data.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


def test_the_archive_is_unpacked_beside_itself(bring: Fetch, rllm: HubServer, data: Path) -> None:
    manifest = bring("rllm").manifest
    assert {name: (data / name).read_bytes() for name in FILES} == FILES
    assert manifest.unpacked is not None and manifest.unpacked.model_dump() == {
        "archive": "data.tar.gz",
        "files": 3,
        "bytes": sum(map(len, FILES.values())),
    }
    assert [record.path for record in manifest.files] == ["README.md", "data.tar.gz"] and not manifest.evaluation_only


@pytest.mark.parametrize("spoilt", [b"", b"x", bytes(3_000_000), noise(3_000_000)[:-1] + b"!"])
def test_damaged_unpacked_files_are_repaired_without_the_network(
    bring: Fetch, rllm: HubServer, data: Path, watch: Watch, spoilt: bytes
) -> None:
    bring("rllm")
    rllm.log.clear()
    (data / "data/company_tables/acme/a.json").write_bytes(spoilt)
    (data / "data/train_finqa.csv").unlink()
    report = bring("rllm")
    assert set(report.repaired) == {"data/train_finqa.csv", "data/company_tables/acme/a.json"} and rllm.log == []
    assert {name: (data / name).read_bytes() for name in FILES} == FILES
    assert bring("rllm").repaired == () and any("acme/a.json" in line for line in watch.lines)


def test_a_damaged_archive_is_fetched_again_and_unpacked(bring: Fetch, rllm: HubServer, data: Path) -> None:
    bring("rllm")
    (data / "data.tar.gz").write_bytes(b"spoilt")
    assert bring("rllm").repaired == ("data.tar.gz",)


def test_an_archive_that_is_none_stays_incomplete(bring: Fetch, hub: HubServer, data: Path) -> None:
    for content in (b"no archive", tar_gz(FILES)[:-900_000]):
        hub.add("rLLM/finqa", {"data.tar.gz": content}, commit=COMMIT)
        with pytest.raises(DataError, match="cannot be unpacked") as caught:
            bring("rllm")
        assert caught.value.remedy.startswith("run the same command again")
        manifest = read_manifest(data)
        assert manifest is not None and not manifest.complete
    hub.add("rLLM/finqa", {"data.tar.gz": tar_gz(FILES)}, commit=COMMIT)
    assert bring("rllm").manifest.complete and (data / "data/train_finqa.csv").exists()


@pytest.mark.parametrize(
    "bad",
    [
        member("../up"),
        member("/etc/passwd"),
        member("a/../../up"),
        member("fetch.json"),
        member(".fetch/x.part"),
        member("data.tar.gz"),
        member("link", tarfile.SYMTYPE, link="/etc/passwd"),
        member("link", tarfile.LNKTYPE, link="ok"),
        member("device", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
        member("../folder", tarfile.DIRTYPE),
        member("ok"),
    ],
    ids=lambda one: f"{one.name}-{one.type.decode()}",
)
def test_hostile_entries_are_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    archive = archive_of(folder, member("ok"), bad)
    with pytest.raises(DataError):
        unpack(archive, taken=["data.tar.gz"])
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["data.tar.gz", "in", "ok"]


def test_a_link_of_the_users_own_leads_nothing_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in/data").symlink_to(tmp_path / "out")
    with pytest.raises(DataError):
        unpack(archive_of(tmp_path / "in", member("data/a")), taken=[])
    assert list((tmp_path / "out").iterdir()) == []


def test_bombs_stop_at_the_bound(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, member("a", size=600), member("b", size=600))
    with pytest.raises(DataError, match="more than 9 entries or 1000 bytes"):
        unpack(archive, taken=[], max_members=9, max_bytes=1000)
    with pytest.raises(DataError, match="more than 1 entries"):
        unpack(archive, taken=[], max_members=1)
    assert not (tmp_path / "b").exists()


def test_a_folder_in_the_way_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError, match="Cannot read or write"):
        unpack(archive_of(tmp_path, member("a", size=5)), taken=[])


def test_folders_and_dots_are_no_files(tmp_path: Path) -> None:
    members = [member("./", tarfile.DIRTYPE), member("./d/", tarfile.DIRTYPE), member("./d/a", size=3)]
    result = unpack(archive_of(tmp_path, *members), taken=[])
    assert (result.files, result.size, result.written) == (1, 3, ("d/a",)) and (tmp_path / "d/a").is_file()


@given(st.binary(max_size=200), st.integers(min_value=0, max_value=400))
def test_no_bytes_crash_it(tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    whole = tar_gz({"a": b"1" * 50, "b/c": b"2"})
    (folder / "x.tar.gz").write_bytes(whole[:at] + noise + whole[at:])
    try:
        unpack(folder / "x.tar.gz", taken=[], max_bytes=2**20)
    except DataError as error:
        assert error.message
