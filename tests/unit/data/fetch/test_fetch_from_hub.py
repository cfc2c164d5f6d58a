from __future__ import annotations

import json
from pathlib import Path

import pytest
from fetch_cases import COMMIT, SNORKEL, Fetch, Watch, noise, sha256
from fixtures.hub_server import Fault, HubServer

from finqa_cli.data.fetch import SOURCES, read_manifest
from finqa_cli.data.fetch.download import AT_A_TIME
from finqa_cli.errors import (
    AuthenticationError,
    ConfigError,
    DataError,
    ServiceUnavailableError,
    StorageError,
    UsageError,
)

TABLES = "input_companies/tables_cleaned_all_companies.json"


def test_the_loopback_hub_is_one_to_the_real_client(hub: HubServer, tmp_path: Path) -> None:
    from huggingface_hub import HfApi, snapshot_download

    folder = snapshot_download("snorkelai/finqa-data", repo_type="dataset", endpoint=hub.url, local_dir=tmp_path / "it")
    assert {name: (Path(folder) / name).read_bytes() for name in SNORKEL} == SNORKEL
    assert {request.method for request in hub.log if "/resolve/" in request.path} == {"HEAD", "GET"}
    info = HfApi(endpoint=hub.url).dataset_info("snorkelai/finqa-data", files_metadata=True)
    large = next(one for one in info.siblings or () if one.rfilename == TABLES)
    assert info.sha == COMMIT and large.lfs is not None and large.lfs.sha256 == sha256(SNORKEL[TABLES])


def test_a_fetch_takes_what_is_wanted_and_records_it(bring: Fetch, hub: HubServer, data: Path, watch: Watch) -> None:
    report = bring("snorkel")
    names = [name for name in sorted(SNORKEL) if name not in (".gitattributes",) and not name.endswith(".txt")]
    assert sorted(path.relative_to(data).as_posix() for path in data.rglob("*") if path.is_file()) == sorted(
        [*names, "fetch.json"]
    )
    assert all((data / name).read_bytes() == SNORKEL[name] for name in names)
    document = json.loads((data / "fetch.json").read_text())
    assert document["repository"] == "snorkelai/finqa-data" and document["revision"] == COMMIT
    assert (document["licence"], document["licence_announced"]) == ("Apache-2.0", "apache-2.0")
    assert document["evaluation_only"] and document["complete"] and "Do not train on it" in document["terms"]
    assert {one["path"]: (one["bytes"], one["sha256"]) for one in document["files"]} == {
        name: (len(SNORKEL[name]), sha256(SNORKEL[name])) for name in names
    }
    assert all(f"/resolve/{COMMIT}/" in one["url"] and one["evaluation_only"] for one in document["files"])
    assert "very-secret" not in (data / "fetch.json").read_text()
    assert report.manifest == read_manifest(data) and sorted(report.downloaded) == names
    total = sum(len(SNORKEL[name]) for name in names)
    assert watch.moves[-1] == (total, total) and watch.lines == []


def test_a_second_fetch_checks_everything_and_asks_nobody(bring: Fetch, hub: HubServer, data: Path) -> None:
    first = bring("snorkel")
    hub.log.clear()
    before = (data / "fetch.json").read_bytes()
    second = bring("snorkel")
    assert hub.log == [] and second.manifest == first.manifest and second.downloaded == ()
    assert (data / "fetch.json").read_bytes() == before
    assert bring("snorkel", revision=COMMIT).downloaded == () and hub.log == []
    assert bring("snorkel", revision="main").downloaded == () and not hub.gets("/resolve/")


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"spoilt"), lambda path: path.unlink()])
def test_a_damaged_or_missing_file_is_named_and_fetched_again(
    bring: Fetch, hub: HubServer, data: Path, watch: Watch, spoil: object
) -> None:
    bring("snorkel")
    hub.log.clear()
    spoil(data / TABLES)  # type: ignore[operator]
    report = bring("snorkel")
    assert report.repaired == report.downloaded == (TABLES,)
    assert (data / TABLES).read_bytes() == SNORKEL[TABLES]
    assert [line for line in watch.lines if TABLES in line and "again" in line]
    assert len(hub.gets("/resolve/")) == 1
    assert bring("snorkel").downloaded == ()


def test_what_a_damaged_file_was_stays_named_when_the_hub_is_gone(
    bring: Fetch, hub: HubServer, data: Path, watch: Watch
) -> None:
    bring("snorkel")
    (data / TABLES).write_bytes(b"spoilt")
    hub.faults.append(Fault(where="/api/", status=503, times=99))
    with pytest.raises(ServiceUnavailableError, match="HTTP 503"):
        bring("snorkel")
    assert TABLES in watch.lines[0]


def test_a_branch_is_pinned_by_the_first_fetch(bring: Fetch, hub: HubServer, data: Path) -> None:
    hub.faults.append(Fault(where="benchmark_questions", status=404))
    with pytest.raises(DataError, match=r"finqa\.csv"):
        bring("snorkel")
    manifest = read_manifest(data)
    assert manifest is not None and manifest.revision == COMMIT and not manifest.complete and manifest.files == ()
    later = {**SNORKEL, "benchmark_questions/finqa.csv": b"changed"}
    hub.add("snorkelai/finqa-data", later, commit="b" * 40)
    assert bring("snorkel").manifest.revision == COMMIT
    assert (data / "benchmark_questions/finqa.csv").read_bytes() == SNORKEL["benchmark_questions/finqa.csv"]
    for revision in ("b" * 40, "main"):
        with pytest.raises(UsageError, match="not at b"):
            bring("snorkel", revision=revision)
    other = bring("snorkel", revision="main", folder=data.with_name("other"))
    assert other.manifest.revision == "b" * 40


def test_pinned_sources_ask_for_their_commit(bring: Fetch, hub: HubServer, data: Path) -> None:
    files = {"full/test-00000-of-00001.parquet": b"PAR1", "full/train-00000-of-00001.parquet": b"PAR1x"}
    files |= {"sanitized/test-00000-of-00001.parquet": b"PAR1y"}
    hub.add("google-research-datasets/mbpp", files, commit=SOURCES["mbpp"].revision, licence="mit")
    hub.add("google-research-datasets/mbpp", {}, commit="c" * 40)
    report = bring("mbpp")
    assert report.manifest.revision == SOURCES["mbpp"].revision and report.manifest.licence == "CC-BY-4.0"
    marks = {record.path.split("-")[0]: record.evaluation_only for record in report.manifest.files}
    assert marks == {"full/test": True, "full/train": False, "sanitized/test": True}
    assert not report.manifest.evaluation_only


def test_a_licence_that_differs_is_said(bring: Fetch, hub: HubServer, watch: Watch) -> None:
    hub.repositories["snorkelai/finqa-data"].licence = "mit"
    assert bring("snorkel").manifest.licence_announced == "mit"
    assert "has the licence mit; finqa expected Apache-2.0" in watch.lines[0]


def test_gated_data_asks_for_a_token(bring: Fetch, hub: HubServer) -> None:
    hub.repositories["snorkelai/finqa-data"].gated = True
    with pytest.raises(AuthenticationError) as caught:
        bring("snorkel")
    assert "HF_TOKEN" in caught.value.remedy and "hf auth login" in caught.value.remedy and caught.value.exit_code == 77


def test_the_token_goes_to_the_hub_only(
    bring: Fetch, hub: HubServer, data: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "hf_" + "x" * 34
    hub.repositories["snorkelai/finqa-data"].gated = True
    monkeypatch.setenv("HF_TOKEN", token)
    hub.faults.append(Fault(where="benchmark", status=500))
    bring("snorkel")
    to_storage = [request for request in hub.log if "/storage/" in request.path]
    to_hub = [request for request in hub.log if "/storage/" not in request.path]
    assert to_storage and not any("authorization" in map(str.lower, request.headers) for request in to_storage)
    assert all(token in str(request.headers) for request in to_hub)
    written = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    assert token.encode() not in written and token not in "".join(watch.lines)


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        (Fault(where="/api/", status=401), AuthenticationError, "HTTP 401"),
        (Fault(where="/api/", status=403), AuthenticationError, "gated"),
        (Fault(where="/api/", status=404, headers={"X-Error-Code": "RevisionNotFound"}), DataError, "no revision"),
        (Fault(where="/api/", status=404), DataError, "does not have it"),
        (Fault(where="/api/", status=502, times=9), ServiceUnavailableError, "HTTP 502; gave up after attempt 4"),
        (Fault(where="/api/", status=418), ServiceUnavailableError, "HTTP 418"),
        (Fault(where="/resolve/", status=403, times=9), AuthenticationError, "gated"),
        (Fault(where="/resolve/", status=500, times=99), ServiceUnavailableError, "HTTP 500; gave up"),
    ],
)
def test_refusals(bring: Fetch, hub: HubServer, fault: Fault, error: type[Exception], said: str) -> None:
    hub.faults.append(Fault(**vars(fault)))
    with pytest.raises(error, match=said):
        bring("snorkel")


def test_offline_mode_is_named(bring: Fetch, hub: HubServer, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ServiceUnavailableError, match="HF_HUB_OFFLINE") as caught:
        bring("snorkel")
    assert caught.value.remedy.startswith("unset HF_HUB_OFFLINE") and hub.log == [] and not data.exists()


def test_a_host_that_is_not_there(bring: Fetch, hub: HubServer, data: Path, watch: Watch) -> None:
    hub.stop()
    with pytest.raises(ServiceUnavailableError, match=r"cannot be reached.*gave up after attempt 4"):
        bring("snorkel")
    assert len(watch.lines) == 3 and "attempt 2 of 4" in watch.lines[0] and not data.exists()


def test_a_host_that_is_no_hub(bring: Fetch, hub: HubServer) -> None:
    for body in ({"sha": "x"}, {"id": "x"}, {"id": "x", "sha": "../up"}, []):
        hub.repositories["snorkelai/finqa-data"].answer = json.dumps(body).encode()
        with pytest.raises(DataError, match=r"did not respond like|names no commit"):
            bring("snorkel")


@pytest.mark.parametrize(
    "name", ["../up.json", "/etc/up.json", "a/../../up.json", "C:/up.json", "a\\..\\up.json", "a\nb.json"]
)
def test_served_names_cannot_leave_the_folder(bring: Fetch, hub: HubServer, data: Path, name: str) -> None:
    files = {**SNORKEL, f"input_companies/{name}" if not name.startswith("/") else f"input_companies/..{name}": b"{}"}
    hub.add("snorkelai/finqa-data", files, commit="d" * 40)
    with pytest.raises(DataError, match="served file name"):
        bring("snorkel")
    assert not data.exists() and not hub.gets("/resolve/")


def test_a_layout_that_changed_is_said(bring: Fetch, hub: HubServer) -> None:
    hub.add("snorkelai/finqa-data", {"README.md": b"moved"}, commit="d" * 40)
    with pytest.raises(DataError, match=r"has no benchmark_questions/\* and no input_companies"):
        bring("snorkel")


def test_folders_of_others_are_left_alone(bring: Fetch, hub: HubServer, data: Path) -> None:
    data.mkdir()
    (data / "README.md").write_text("mine")
    with pytest.raises(StorageError, match="holds other files"):
        bring("snorkel")
    assert (data / "README.md").read_text() == "mine" and hub.log == []
    (data / "README.md").unlink()
    bring("snorkel")
    with pytest.raises(UsageError, match="contains the data set snorkel"):
        bring("finqa")
    (data / "fetch.json").write_text('{"format": 2}')
    with pytest.raises(DataError, match=r"fetch\.json is damaged: format"):
        bring("snorkel")
    data.with_name("file").write_text("")
    with pytest.raises(StorageError):
        bring("snorkel", folder=data.with_name("file"))


def test_two_fetches_never_share_a_folder(bring: Fetch, hub: HubServer, data: Path) -> None:
    import fcntl
    import os

    data.mkdir()
    other = os.open(data, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="Another process"):
        bring("snorkel")
    os.close(other)
    assert bring("snorkel").downloaded


def test_a_full_disk_is_a_storage_error(bring: Fetch, hub: HubServer, data: Path) -> None:
    from finqa_cli.data.fetch.digests import Digest
    from finqa_cli.data.fetch.download import Partial
    from finqa_cli.data.fetch.repository_listing import RemoteFile

    hub.faults.append(Fault(where="benchmark_questions", status=404))
    with pytest.raises(DataError):
        bring("snorkel")
    digest = Digest("sha256", sha256(SNORKEL[TABLES]))
    file = RemoteFile(path=TABLES, url="", size=len(SNORKEL[TABLES]), digest=digest)
    part = Partial(data, file)
    part.begin("")
    part.path.unlink()
    part.path.symlink_to("/dev/full")
    (data / TABLES).unlink(missing_ok=True)
    with pytest.raises(StorageError, match="No space left") as caught:
        bring("snorkel")
    assert "free some space" in caught.value.remedy
    part.path.unlink()
    assert TABLES in bring("snorkel").downloaded


def test_more_than_the_disk_holds_is_refused_before_the_first_byte(
    bring: Fetch, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(StorageError, match="has 1000 bytes free"):
        bring("snorkel")
    assert not hub.gets("/resolve/")


def test_many_small_files_arrive_side_by_side(bring: Fetch, hub: HubServer, data: Path) -> None:
    many = {f"input_companies/c/{number}.json": noise(100, number) for number in range(60)}
    hub.add("snorkelai/finqa-data", {**SNORKEL, **many}, commit="e" * 40)
    hub.faults += [Fault(where=f"/{number}.json", delay_s=0.1) for number in range(24)]
    bring("snorkel")
    assert all((data / name).read_bytes() == content for name, content in many.items())
    assert 2 <= hub.busiest <= AT_A_TIME
