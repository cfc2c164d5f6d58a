from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.command_calls import document, failure

from finqa_cli.app import main
from finqa_testing import Delay, Latency, LoopbackConfig, LoopbackProcess

DAYTONA = ["--sandbox", "daytona"]
NAMED = ["--snapshot-name", "mine"]
EMBEDDED = ("--data", "embedded")


@pytest.fixture(scope="module")
def loopback() -> Iterator[LoopbackProcess]:
    config = LoopbackConfig(latency=Latency(build=Delay(median_s=0.7)))
    with LoopbackProcess(config) as running, running.trusted():
        yield running


@pytest.fixture
def home(loopback: LoopbackProcess, empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in loopback.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("finqa_plugins.sandboxes.daytona.daytona_images._POLL_S", 0.05)
    monkeypatch.setenv("FINQA_HOME", str(empty_folder / "home"))
    return empty_folder / "home"


def requests(loopback: LoopbackProcess) -> int:
    asked = loopback.control.stats()["requests"]
    return sum(sum(by_status.values()) for what, by_status in asked.items() if "/control/" not in what)


@pytest.mark.thorough
def test_building_listing_and_deleting(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", "list", *DAYTONA]) == 0
    assert capsys.readouterr().out == "There are no images. Build one: finqa snapshot build --sandbox daytona\n"
    built = document(["snapshot", "build", *NAMED, *EMBEDDED, *DAYTONA], capsys)
    assert built["name"] == "mine" and Path(built["path"]).is_dir() and built["new"]
    image = built["image"]
    assert image["new"] and image["state"] == "active" and image["snapshot"] == "mine"
    assert image["boot_test"]["reward"] == 1.0 and image["boot_test"]["turns"] > 2

    assert document(["snapshot", "build", *NAMED, *DAYTONA], capsys)["image"] == {
        **image,
        "new": False,
        "boot_test": None,
    }
    assert main(["snapshot", "build", *NAMED, *DAYTONA, "--quiet"]) == 0
    told = capsys.readouterr()
    assert told.out.endswith(f"\nNothing to do: image {image['name']} was built and tested before. It is ready.\n")
    assert told.err == ""

    listed = document(["snapshot", "list", *DAYTONA], capsys)
    facts = {key: image[key] for key in ("name", "snapshot", "digest", "state", "created")}
    assert listed == {"provider": "daytona", "images": [facts]}
    assert main(["snapshot", "list", *DAYTONA]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == [image["name"], "mine", "active"]

    deleted = document(["snapshot", "delete", "mine", *DAYTONA], capsys)
    assert deleted == {"name": "mine", "provider": "daytona", "deleted": [image["name"]]}
    assert failure(["snapshot", "delete", "mine", *DAYTONA], capsys)[0] == 65
    assert document(["snapshot", "show", "mine"], capsys)["digest"] == built["digest"], "the one on this machine stays"


def test_without_the_flag_everything_stays_on_this_machine(
    home: Path, loopback: LoopbackProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    before = requests(loopback)
    assert "image" not in document(["snapshot", "build"], capsys)
    assert document(["snapshot", "build", "--sandbox", "local"], capsys)["image"] is None
    assert main(["snapshot", "build", "--sandbox", "local", "-q"]) == 0
    assert "Sandboxes of local need no image." in capsys.readouterr().out
    assert [one["name"] for one in document(["snapshot", "list"], capsys)["snapshots"]] == ["openenv-finqa"]
    assert len(document(["snapshot", "delete", "openenv-finqa"], capsys)["deleted"]) == 1
    assert requests(loopback) == before


def test_environments_that_execute_code_need_nothing_built(
    home: Path, loopback: LoopbackProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    before = requests(loopback)
    assert main(["snapshot", "build", "--environment", "code", *DAYTONA]) == 0
    assert capsys.readouterr().out.startswith("Nothing to build: environment code has no snapshot")
    assert requests(loopback) == before and not home.exists()


def test_bad_data_never_reach_the_cloud(
    home: Path, loopback: LoopbackProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad/benchmark_questions").mkdir(parents=True)
    Path("bad/benchmark_questions/finqa.csv").write_text("id,question\n1,\n")
    before = requests(loopback)
    for data in ("bad", "absent"):
        status, told = failure(["snapshot", "build", "--data", data, *NAMED, *DAYTONA], capsys)
        assert status == 65 and data in told
    assert requests(loopback) == before


def test_a_key_that_is_missing_or_wrong_is_told_with_77(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "dtn_wrong_key_9f8e")
    commands = (["build", *NAMED, *EMBEDDED], ["list"], ["delete", "mine"])
    for command in commands:
        status, told = failure(["snapshot", *command, *DAYTONA], capsys)
        assert status == 77 and "rejected the API key" in told and "dtn_wrong" not in told
    monkeypatch.delenv("DAYTONA_API_KEY")
    for command in commands:
        status, told = failure(["snapshot", *command, *DAYTONA], capsys)
        assert status == 77 and "DAYTONA_API_KEY is not set" in told


def test_a_failed_build_is_told_with_the_end_of_its_log(
    home: Path, loopback: LoopbackProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    loopback.control.set_build_fails("no space left on the builder")
    try:
        status, told = failure(["snapshot", "build", *NAMED, *EMBEDDED, *DAYTONA, "--quiet"], capsys)
    finally:
        loopback.control.set_build_fails("")
    assert status == 1 and "no space left on the builder" in told and "The end of its log:\n" in told
    assert main(["snapshot", "list", *DAYTONA]) == 0
    assert "build_failed: no space left" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_build_that_was_interrupted_is_picked_up_again(
    home: Path, loopback: LoopbackProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    builds = sum(loopback.control.stats()["requests"].get("POST /api/snapshots", {}).values())
    command = [sys.executable, "-m", "finqa_cli", "snapshot", "build", "--snapshot-name", "stopped"]
    command += [*EMBEDDED, *DAYTONA]
    with subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "FROM python" in line:
                    break
            process.send_signal(signal.SIGINT)
            told = process.stderr.read()
            assert process.wait(20) == 130
        finally:
            process.kill()
    assert "Next: finqa snapshot build --sandbox daytona --snapshot-name stopped" in told and "Traceback" not in told
    assert main(["snapshot", "build", "--snapshot-name", "stopped", *DAYTONA]) == 0
    told_again = capsys.readouterr()
    assert "Boot test: one scripted episode in a fresh sandbox of finqa-stopped-" in told_again.err
    first, path, last = told_again.out.splitlines()
    assert first.startswith("Nothing to do, already built: snapshot stopped ") and Path(path).is_dir()
    assert last.startswith(("Built image finqa-stopped-", "Image exists already: finqa-stopped-"))
    assert last.endswith("(reward 1). It is ready.")
    assert loopback.control.stats()["requests"]["POST /api/snapshots"] == {"200": builds + 1}, "it was sent once"
    assert loopback.control.stats()["sandboxes"] == 0
