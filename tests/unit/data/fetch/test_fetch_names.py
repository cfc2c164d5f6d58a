from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.data.fetch import SOURCES
from finqa_cli.data.fetch.known_sources import checked_endpoint, is_commit
from finqa_cli.data.fetch.repository_listing import safe_name
from finqa_cli.data.fetch.retries import Patience
from finqa_cli.errors import ConfigError, DataError

PIECES = st.lists(
    st.sampled_from(["..", ".", "/", "a", "fetch.json", ".fetch", "\\", "C:", "\0", " ", "~"]) | st.text(max_size=3)
)


@given(PIECES.map("".join) | PIECES.map("/".join))
def test_names_that_pass_stay_inside(name: str) -> None:
    folder = Path("/some/folder")
    try:
        path = folder / safe_name(name)
    except DataError:
        return
    assert path.resolve().is_relative_to(folder) and path.resolve() != folder
    assert path not in (folder / "fetch.json", folder / ".fetch") and folder / ".fetch" not in path.parents


@pytest.mark.parametrize(
    "name", ["a.json", "input companies/acme, inc./t.json", "ü/λ.json", "a/.hidden", "data/fetch.json"]
)
def test_plain_names_pass(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "a//b", "./a", "a/", "/a", "a/..", "FETCH.JSON", ".fetch/a", "c:a", "a/d:/b", "a\tb"]
)
def test_other_names_do_not(name: str) -> None:
    with pytest.raises(DataError):
        safe_name(name)


def test_pauses_double_up_to_the_longest() -> None:
    patience = Patience(first_pause_s=1, longest_pause_s=5)
    assert [patience.pause_s(attempt) for attempt in (1, 2, 3, 4)] == [1, 2, 4, 5]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "hub",
        "ftp://hub",
        "file:///etc",
        "http://",
        "http://a:b@hub",
        "http://hub?x=1",
        "http://hub#x",
        "http://hub:99999",
    ],
)
def test_endpoints_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_endpoint(address)
    assert "a:b" not in caught.value.message


def test_sources_are_sound() -> None:
    assert checked_endpoint("https://hub.example:8443/mirror/") == "https://hub.example:8443/mirror"
    for name, source in SOURCES.items():
        assert name == source.name and source.licence and source.repository.count("/") == 1
        assert is_commit(source.revision) or source.revision in ("main", "HEAD")
        assert not source.archive or source.archive in source.files
    assert SOURCES["snorkel"].for_evaluation("input_companies/a/b.json")
    assert not SOURCES["finqa"].for_evaluation("dev.json") and not SOURCES["rllm"].for_evaluation("data.tar.gz")
