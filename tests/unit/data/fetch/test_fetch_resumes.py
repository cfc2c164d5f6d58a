from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
from fetch_cases import FINQA, Fetch, Watch, signed_out
from fixtures.hub_server import Fault, HubServer, hub_server
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.data.fetch import SOURCES, fetch
from finqa_cli.data.fetch.retries import Patience
from finqa_cli.errors import DataError, ServiceUnavailableError

TRAIN = FINQA["dataset/train.json"]
ONCE = Patience(attempts=1, read_s=5.0)


def ranges(hub: HubServer) -> list[str]:
    return [request.headers.get("Range", "") for request in hub.gets("train.json")]


def parts_of_large_files(data: Path) -> list[Path]:
    return [path for path in (data / ".fetch").glob("*.part") if path.stat().st_size > 1000]


def test_a_broken_transfer_goes_on_where_it_stopped(bring: Fetch, hub: HubServer, data: Path, watch: Watch) -> None:
    hub.faults.append(Fault(where="train.json", cut_after=70_000))
    report = bring("finqa")
    assert (data / "train.json").read_bytes() == TRAIN
    assert ranges(hub) == ["", "bytes=70000-"]
    assert hub.gets("train.json")[1].headers["If-Range"].startswith('"')
    assert "broke off" in watch.lines[0] and report.resumed == ()
    assert max(done for done, _ in watch.moves) == watch.moves[-1][0] == watch.moves[-1][1]


def test_a_second_run_goes_on_where_the_first_gave_up(bring: Fetch, hub: HubServer, data: Path) -> None:
    hub.faults.append(Fault(where="train.json", cut_after=70_000))
    with pytest.raises(ServiceUnavailableError, match=r"train\.json.*broke off") as caught:
        bring("finqa", patience=ONCE)
    assert "downloaded data is kept" in caught.value.remedy and not (data / "train.json").exists()
    report = bring("finqa")
    assert (data / "train.json").read_bytes() == TRAIN
    assert "train.json" in report.resumed  # the file beside it may have been under way as well
    assert ranges(hub) == ["", "bytes=70000-"] and not (data / ".fetch").exists()


def test_a_killed_process_loses_nothing_that_arrived(bring: Fetch, hub: HubServer, data: Path) -> None:
    hub.faults.append(Fault(where="train.json", cut_after=100_000, stall_s=20))
    script = (
        "import sys; from pathlib import Path; from finqa_cli.data.fetch import SOURCES, fetch\n"
        "class Watch:\n"
        "    def line(self, text): pass\n"
        "    def moved(self, done, total): done > 90_000 and print(done, flush=True)\n"
        "fetch(SOURCES['finqa'], Path(sys.argv[2]), endpoint=sys.argv[1], observer=Watch())"
    )
    with subprocess.Popen([sys.executable, "-c", script, hub.url, str(data)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and int(process.stdout.readline()) > 90_000  # nearly all of it of this file
        process.kill()
    report = bring("finqa")
    assert (data / "train.json").read_bytes() == TRAIN and "train.json" in report.resumed
    assert int(ranges(hub)[1].removeprefix("bytes=").rstrip("-")) > 80_000


def test_large_files_of_the_hub_resume_at_their_storage(bring: Fetch, hub: HubServer, data: Path) -> None:
    hub.faults.append(Fault(where="/storage/", cut_after=120_000))
    bring("snorkel")
    first, second = hub.gets("/storage/")
    assert "Range" not in first.headers and second.headers["Range"] == "bytes=120000-"
    assert second.headers["If-Range"] == '"storage-' + second.path.split("?")[0][-8:] + '"'


def test_a_server_without_ranges_begins_again(bring: Fetch, hub: HubServer, data: Path) -> None:
    hub.faults += [
        Fault(where="train.json", cut_after=70_000),
        Fault(where="train.json", ignore_range=True),
    ]
    bring("finqa")
    assert (data / "train.json").read_bytes() == TRAIN and ranges(hub) == ["", "bytes=70000-"]


def test_another_etag_begins_again(bring: Fetch, hub: HubServer, data: Path, watch: Watch) -> None:
    hub.faults += [
        Fault(where="train.json", cut_after=70_000, etag="older", change=lambda data: bytes(len(data))),
        Fault(where="train.json", cut_after=90_000),  # 200, since If-Range does not hold
    ]
    bring("finqa")
    assert (data / "train.json").read_bytes() == TRAIN and ranges(hub) == ["", "bytes=70000-", "bytes=90000-"]


def test_a_server_that_ignores_if_range_is_not_trusted(bring: Fetch, hub: HubServer, data: Path, watch: Watch) -> None:
    hub.faults += [
        Fault(where="train.json", cut_after=70_000, etag="older"),
        Fault(where="train.json", status=206, headers={"Content-Range": "bytes 70000-9/9", "ETag": '"newer"'}),
        Fault(where="train.json", cut_after=50_000),
        Fault(where="train.json", status=206, headers={"Content-Range": "bytes 0-9/9"}),
    ]
    bring("finqa", patience=Patience(attempts=5, first_pause_s=0.01))
    assert (data / "train.json").read_bytes() == TRAIN
    assert ranges(hub) == ["", "bytes=70000-", "", "bytes=50000-", ""]
    assert sum("has a different file now" in line for line in watch.lines) == 2


def test_parts_that_do_not_fit_begin_again_once(bring: Fetch, hub: HubServer, data: Path, watch: Watch) -> None:
    hub.faults.append(Fault(where="train.json", cut_after=70_000, change=lambda data: bytes(len(data))))
    bring("finqa")
    assert (data / "train.json").read_bytes() == TRAIN and ranges(hub) == ["", "bytes=70000-", ""]
    assert any("do not match;" in line for line in watch.lines)


def test_wrong_bytes_in_pieces_end_too(bring: Fetch, hub: HubServer) -> None:
    wrong = {"where": "train.json", "change": lambda data: bytes(len(data))}
    hub.faults += [one for _ in range(2) for one in (Fault(cut_after=70_000, **wrong), Fault(**wrong))]  # type: ignore[arg-type]
    with pytest.raises(DataError, match="but sent git-sha1"):
        bring("finqa")
    assert ranges(hub) == ["", "bytes=70000-", "", "bytes=70000-"]


def test_circular_redirects_end(bring: Fetch, hub: HubServer) -> None:
    target = {"Location": f"{hub.url}/raw/czyssrs/FinQA/{SOURCES['finqa'].revision}/dataset/train.json"}
    hub.faults.append(Fault(where="train.json", status=302, headers=target, times=99))
    with pytest.raises(ServiceUnavailableError, match=r"invalid response:.*redirect"):
        bring("finqa")


def test_wrong_bytes_are_an_error_and_are_not_kept(bring: Fetch, hub: HubServer, data: Path) -> None:
    hub.faults.append(Fault(where="train.json", change=lambda data: bytes(len(data))))
    with pytest.raises(DataError, match=r"train\.json: GitHub announced git-sha1 .* but sent git-sha1"):
        bring("finqa")
    assert not (data / "train.json").exists() and parts_of_large_files(data) == []
    bring("finqa")
    assert (data / "train.json").read_bytes() == TRAIN


def test_wrong_bytes_of_a_large_file(bring: Fetch, hub: HubServer) -> None:
    hub.faults.append(Fault(where="/storage/", change=lambda data: data[::-1]))
    with pytest.raises(DataError, match="announced sha256"):
        bring("snorkel")


def test_more_bytes_than_announced_stop_at_once(bring: Fetch, hub: HubServer, data: Path) -> None:
    hub.faults.append(Fault(where="train.json", change=lambda data: data * 50))
    with pytest.raises(DataError, match="but sent more"):
        bring("finqa")
    assert parts_of_large_files(data) == []


def test_fewer_bytes_than_announced_are_waited_for(bring: Fetch, hub: HubServer, data: Path) -> None:
    hub.faults.append(Fault(where="train.json", change=lambda data: data[:1000]))
    bring("finqa")
    assert (data / "train.json").read_bytes() == TRAIN and ranges(hub) == ["", "bytes=1000-"]


def test_failures_of_the_host_are_tried_again(bring: Fetch, hub: HubServer, watch: Watch) -> None:
    hub.faults += [Fault(where="/git/trees/", status=500, times=2), Fault(where="train.json", status=503, times=2)]
    assert len(bring("finqa").downloaded) == 4
    assert sum("HTTP 500" in line for line in watch.lines) == sum("HTTP 503" in line for line in watch.lines) == 2


@pytest.mark.parametrize("dated", [False, True])
def test_the_pause_that_a_host_asks_for_is_kept(bring: Fetch, hub: HubServer, dated: bool) -> None:
    due = int(time.time()) + 2
    asked = formatdate(due, usegmt=True) if dated else "1"
    hub.faults.append(Fault(where="train.json", status=429, headers={"Retry-After": asked}))
    bring("finqa")
    first, second = hub.gets("train.json")
    if dated:
        assert second.at - time.monotonic() >= due - time.time() - 0.1
    else:
        assert second.at - first.at >= 0.95


def test_too_long_a_pause_is_not_kept(bring: Fetch, hub: HubServer) -> None:
    hub.faults.append(Fault(where="train.json", status=429, headers={"Retry-After": "3600"}))
    with pytest.raises(ServiceUnavailableError, match="HTTP 429; the host requests a pause of 3600 s"):
        bring("finqa")


def test_a_silent_host_is_tried_again_and_then_given_up(bring: Fetch, hub: HubServer, data: Path, watch: Watch) -> None:
    hasty = Patience(attempts=2, first_pause_s=0.01, read_s=0.8)
    hub.faults.append(Fault(where="train.json", cut_after=50_000, stall_s=2.0))
    bring("finqa", patience=hasty)
    assert "ReadTimeout" in watch.lines[0] and ranges(hub) == ["", "bytes=50000-"]
    hub.faults.append(Fault(where="LICENSE", delay_s=2.0, times=9))
    with pytest.raises(ServiceUnavailableError, match=r"LICENSE.*ReadTimeout; gave up after attempt 2"):
        bring("finqa", patience=hasty, folder=data.with_name("silent"))


@given(cuts=st.lists(st.integers(min_value=0, max_value=len(TRAIN)), max_size=6), ranged=st.lists(st.booleans()))
@settings(max_examples=12)
def test_any_cuts_give_the_same_bytes(
    loopback: HubServer, tmp_path_factory: pytest.TempPathFactory, cuts: list[int], ranged: list[bool]
) -> None:
    loopback.faults[:] = [
        Fault(where="train.json", cut_after=cut, ignore_range=not takes)
        for cut, takes in zip(cuts, [*ranged, *[True] * 6], strict=False)
    ]
    folder = tmp_path_factory.mktemp("cut") / "data"
    patience = Patience(attempts=len(cuts) + 1, first_pause_s=0.001, read_s=5.0)
    fetch(SOURCES["finqa"], folder, endpoint=loopback.url, observer=Watch(), patience=patience)
    assert (folder / "train.json").read_bytes() == TRAIN


@pytest.fixture(scope="module")
def loopback() -> Iterator[HubServer]:
    with pytest.MonkeyPatch.context() as patch, hub_server() as server:
        signed_out(patch)
        server.add("czyssrs/FinQA", FINQA, commit=SOURCES["finqa"].revision)
        yield server
