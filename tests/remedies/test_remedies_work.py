"""Remedies are executed: the fault is provoked, what was printed is followed, and the fault is gone.

Each row of `user_faults` is a command that fails. The test reads the remedy from the real output, follows every
alternative of it in a folder of its own, and runs the original command again. Nothing that was there may be gone or
changed, and no snapshot may come up under a name whose data was not named.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from remedies.faults import Fault
from remedies.following import Way, run, ways
from remedies.place import Place
from remedies.shared_folders import SharedFolders
from remedies.user_faults import FAULTS

from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> SharedFolders:
    return SharedFolders(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `current` says of the embedded data set."""
    built, _ = LocalSnapshots(tmp_path_factory.mktemp("embedded")).build_embedded()
    return (built.path.parent / "current").read_text()


@pytest.mark.parametrize("name", FAULTS)
def test_a_remedy_fixes_its_fault(
    name: str,
    shared: SharedFolders,
    embedded: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault = FAULTS[name]

    servers = ExitStack()

    def begin(number: int) -> Place:
        here = fault
        if fault.server:
            here = fault.at(servers.enter_context(fault.server()).url)
        folder = tmp_path / str(number)
        folder.mkdir()
        for needed in fault.needs:
            shared.copy(needed, folder / needed)
        monkeypatch.chdir(folder)
        if fault.home:
            monkeypatch.setenv("FINQA_HOME", str(tmp_path / f"home-{number}"))
        monkeypatch.setenv("FINQA_POOL__SANDBOXES", "1")  # a pool of the usual size takes most of a row's time
        fault.write()
        for variable, value in here.env.items():
            monkeypatch.setenv(variable, value)
        return Place(folder, here, capsys, embedded)

    before = dict(os.environ)
    try:
        place = begin(1)
        error, remedy = place.provoke()
        found = _ways(place, remedy, error)
        assert found or fault.by_hand, f"nothing of it can be followed: {remedy}"
        for number, way in enumerate(found, start=1):
            if number > 1:
                place = begin(number)
                way = _ways(place, remedy, place.provoke()[0])[number - 1]
            place.follow(way, error)
        if fault.by_hand:
            if found:
                place = begin(len(found) + 1)
                place.provoke()
            changed = fault.by_hand()
            place.follow(Way(remedy, (), place.fault.filled(changed if isinstance(changed, str) else "")), error)
    finally:  # a `.env` is put into the environment
        servers.close()
        os.environ.clear()
        os.environ.update(before)


def _ways(place: Place, remedy: str, error: str) -> list[Way]:
    """Return the alternatives of a remedy that can be followed here."""
    fault = place.fault
    found = ways(remedy, fault.command, fault.fill, error)
    return [each for each in found if not each.text.removeprefix("finqa ").startswith(fault.elsewhere or "\0")]


@pytest.mark.parametrize(
    ("remedy", "command", "followed"),
    [
        ("finqa snapshot list", "snapshot delete x", [("snapshot list",)]),
        ("finqa sandbox ls shows what is left", "sandbox reap", [("sandbox ls",)]),
        ("finqa sample T, then finqa prefs R", "prefs R", [("sample T", "prefs R")]),
        ("--a 1, or --b 2", "eval x --a 3", ["eval x --a 1", "eval x --a 3 --b 2"]),
        ("--a with one of: x, y", "eval --a z", ["eval --a x"]),
        ("--set s.x=1", "eval --set s.x=2 --set s.y=3", ["eval --set s.y=3 --set s.x=1"]),
        ("leave out --a and --b", "eval --a 1 --b x", ["eval"]),
        ("leave --a out; --data names a file", "eval --a 1", ["eval"]),
        ("correct it, or `finqa eval` makes one", "compare a", []),
        (
            "finqa doctor; then finqa pipeline --resume p, which uses the same data",
            "pipeline",
            [("doctor", "pipeline --resume p")],
        ),
        ("correct it; then finqa experiment run --resume e", "experiment run", [("experiment run --resume e",)]),
        ("name another folder", "eval a", []),
    ],
)
def test_what_is_read_from_a_remedy(remedy: str, command: str, followed: list[object]) -> None:
    assert [way.commands or way.changed for way in ways(remedy, command, {})] == followed


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (Way("", ("snapshot build --snapshot-name mine --data embedded",), "snapshot show mine"), ""),
        (Way("finqa snapshot build", (), "snapshot show mine", lambda: _invent("mine")), "invented data as mine"),
        (Way("", (), "snapshot show", lambda: Path("kept").unlink()), "gone or changed"),
        (Way("", (), "snapshot show", lambda: Path("kept").write_text("new")), "gone or changed"),
        (Way("", (), "snapshot show mine"), "There is no snapshot 'mine'"),
    ],
)
def test_a_remedy_that_does_not_fix_is_noticed(
    way: Way,
    reason: str,
    embedded: str,
    empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FINQA_HOME", str(empty_folder / "home"))
    assert run("snapshot build") == 0
    Path("kept").write_text("old")
    place = Place(empty_folder, Fault("snapshot show mine"), capsys, embedded)
    error, _ = place.provoke()
    if not reason:
        place.follow(way, error)
        return
    with pytest.raises(AssertionError, match=re.escape(reason)):
        place.follow(way, error)


def _invent(name: str) -> None:
    folder = LocalSnapshots(Path(os.environ["FINQA_HOME"])).get(DEFAULT_NAME).path.parent
    shutil.copytree(folder, folder.parent / name)
