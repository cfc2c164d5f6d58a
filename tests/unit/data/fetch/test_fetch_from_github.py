from __future__ import annotations

import time
from pathlib import Path

import pytest
from fetch_cases import COMMIT, FINQA, Fetch, Watch
from fixtures.hub_server import Fault, HubServer

from finqa_cli.data.fetch import SOURCES
from finqa_cli.data.fetch import repository_listing as github
from finqa_cli.errors import AuthenticationError, DataError, ServiceUnavailableError

PINNED = SOURCES["finqa"].revision


def test_the_splits_arrive_with_their_marks(bring: Fetch, hub: HubServer, data: Path) -> None:
    manifest = bring("finqa").manifest
    assert {record.path: record.evaluation_only for record in manifest.files} == {
        "LICENSE": False,
        "train.json": False,
        "dev.json": False,
        "test.json": True,
    }
    assert (manifest.licence, manifest.revision, manifest.evaluation_only) == ("MIT", PINNED, False)
    assert all(
        (data / name).read_bytes() == FINQA[f"dataset/{name}"] for name in ("train.json", "dev.json", "test.json")
    )
    assert all(record.url.startswith(f"{hub.url}/raw/czyssrs/FinQA/{PINNED}/") for record in manifest.files)
    assert not hub.gets("/commits/")  # a commit needs no look-up
    hub.log.clear()
    assert bring("finqa").downloaded == () and hub.log == []


def test_a_branch_is_resolved_first(bring: Fetch, hub: HubServer, data: Path) -> None:
    hub.add("czyssrs/FinQA", {**FINQA, "dataset/dev.json": b"[9]"}, commit=COMMIT)
    assert bring("finqa", revision="main").manifest.revision == COMMIT
    assert (data / "dev.json").read_bytes() == b"[9]" and hub.gets("/commits/main")


@pytest.mark.parametrize(
    ("revision", "said"), [("no/such", "this revision does not exist."), ("f" * 40, "does not have it")]
)
def test_an_unknown_revision(bring: Fetch, data: Path, revision: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        bring("finqa", revision=revision)
    assert "revision" in caught.value.remedy and not data.exists()


def test_the_hourly_limit_is_explained(bring: Fetch, hub: HubServer, watch: Watch) -> None:
    reset = time.time() + 1800
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(reset))}
    hub.faults.append(Fault(where="/git/trees/", status=403, headers=headers))
    with pytest.raises(ServiceUnavailableError, match=time.strftime("until %H:%M UTC", time.gmtime(reset))) as caught:
        bring("finqa")
    assert "GITHUB_TOKEN" in caught.value.remedy and watch.lines == []
    hub.faults.append(Fault(where="/git/trees/", status=403))
    with pytest.raises(AuthenticationError):
        bring("finqa")


def test_the_token_goes_to_the_api_only(bring: Fetch, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_" + "y" * 36)
    bring("finqa")
    authorized = {"/api/" in request.path for request in hub.log if "Authorization" in request.headers}
    assert authorized == {True} and hub.gets("/raw/")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<html>", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "lacks the field 'tree'"),
        ('{"tree": [7]}', "lacks the field 'tree'"),
        ('{"tree": [], "truncated": true}', "truncated the listing"),
        ('{"tree": [{"type": "blob"}]}', "lacks the field 'path'"),
        ('{"tree": []}', "layout has changed"),
    ],
)
def test_answers_that_are_not_githubs(bring: Fetch, hub: HubServer, body: str, said: str) -> None:
    hub.repositories["czyssrs/FinQA"].answer = body.encode()
    with pytest.raises(DataError, match=said):
        bring("finqa")


def test_a_listing_without_end_is_not_taken_in(
    bring: Fetch, hub: HubServer, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(github, "LARGEST_LISTING", 10_000)
    hub.repositories["czyssrs/FinQA"].answer = b" " * 10_001
    with pytest.raises(DataError, match="sends more than 10000 bytes"):
        bring("finqa")
    assert not data.exists()


def test_no_size_or_checksum_is_not_enough(bring: Fetch, hub: HubServer) -> None:
    names = ("train.json", "dev.json", "test.json")
    for entry in ('"size": "7", "sha": "0"', '"size": 7', '"size": -7, "sha": "0"'):
        tree = ", ".join(f'{{"type": "blob", "path": "dataset/{name}", {entry}}}' for name in names)
        hub.repositories["czyssrs/FinQA"].answer = f'{{"tree": [{tree}]}}'.encode()
        with pytest.raises(DataError, match=r"no size|lacks the field 'sha'|are taken"):
            bring("finqa")
