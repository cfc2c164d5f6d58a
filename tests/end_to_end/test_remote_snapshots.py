from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from finqa_cli.data.generated.embedded import embedded_layout
from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.errors import ConfigError, DataError, ServiceUnavailableError
from finqa_cli.provisioning import remote_images
from finqa_cli.provisioning.remote_images import PassedTests
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Choice, Settings
from finqa_cli.settings.schema import DataSettings, PoolSettings
from finqa_cli.types import ImageInfo
from finqa_cli.wiring.build import make_provider, open_environment
from finqa_testing import Delay, Latency, LoopbackConfig, LoopbackProcess

CREATE = "POST /api/sandbox"
BUILD = "POST /api/snapshots"


class Lines(NullReporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def line(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def loopback() -> Iterator[LoopbackProcess]:
    config = LoopbackConfig(latency=Latency(build=Delay(median_s=0.7)))
    with LoopbackProcess(config) as running, running.trusted():
        yield running


@pytest.fixture
def settings(loopback: LoopbackProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in loopback.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("finqa_plugins.sandboxes.daytona.daytona_images._POLL_S", 0.05)
    return Settings(
        engine=Choice(name="human"),  # the boot test plays the expert with any settings
        sandbox=Choice(name="daytona"),
        pool=PoolSettings(max_play_retries=0),
        data=DataSettings(home=tmp_path, snapshot="mine", eval_split="nowhere"),
    )


def build(settings: Settings, reporter: Lines | None = None) -> remote_images.Ready:
    ready = asyncio.run(remote_images.build(settings, reporter or Lines()))
    assert ready is not None
    return ready


def done(loopback: LoopbackProcess, what: str) -> int:
    return sum(loopback.control.stats()["requests"].get(what, {}).values())


@pytest.mark.thorough
def test_from_building_over_a_new_version_to_deleting(settings: Settings, loopback: LoopbackProcess) -> None:
    store = LocalSnapshots(settings.data.home)
    with tempfile.TemporaryDirectory() as folder:
        layout = embedded_layout(Path(folder))
        store.build("mine", layout)
        reporter = Lines()
        first = build(settings, reporter)
        assert first.new and first.image.state == "active" and first.image.snapshot == "mine"
        assert first.trial is not None and first.trial.reward == 1.0 and len(first.trial.turns) > 2
        said = "\n".join(reporter.said)
        assert said.index("pip install") < said.index("Boot test: one scripted episode"), "the build's log comes first"

        creates, builds = done(loopback, CREATE), done(loopback, BUILD)
        again = build(settings)
        assert not again.new and again.trial is None and again.image == first.image
        with_hints = settings.model_copy(update={"environment": Choice(name="finqa", options={"hints": True})})
        assert build(with_hints).image == first.image, "what a server is told is no part of its image"
        assert (done(loopback, CREATE), done(loopback, BUILD)) == (creates, builds), "nothing to do"

        questions = layout / "benchmark_questions/finqa.csv"
        questions.write_text("".join(questions.read_text().splitlines(keepends=True)[:-1]))
        store.build("mine", layout)
    second = build(settings)
    assert second.new and second.trial is not None and second.image.name != first.image.name
    names = [first.image.name, second.image.name]
    assert [image.name for image in asyncio.run(remote_images.list_all(settings))] == names, "the old one stays"

    assert sorted(asyncio.run(remote_images.delete(settings, "mine"))) == sorted(names)
    assert asyncio.run(remote_images.list_all(settings)) == []
    assert not PassedTests(settings.data.home).has(second.image)
    with pytest.raises(DataError, match="has no image of snapshot 'mine'") as caught:
        asyncio.run(remote_images.delete(settings, "mine"))
    assert caught.value.remedy == "finqa snapshot list --sandbox daytona"
    assert loopback.control.stats()["sandboxes"] == 0


def test_an_image_whose_sandboxes_do_not_work_is_not_called_ready(
    settings: Settings, loopback: LoopbackProcess
) -> None:
    LocalSnapshots(settings.data.home).build_embedded("mine", named=True)
    image = asyncio.run(without_test(settings))
    loopback.control.break_image(image.name)
    with pytest.raises(ServiceUnavailableError, match="is built but not ready: its test failed") as caught:
        build(settings)
    assert "No module named" in caught.value.message, "what the sandbox said"
    assert "finqa snapshot delete mine --sandbox daytona" in caught.value.remedy
    assert not PassedTests(settings.data.home).has(image)
    assert loopback.control.stats()["sandboxes"] == 0


async def without_test(settings: Settings) -> ImageInfo:
    provider = make_provider(settings)
    spec = open_environment(settings, NullReporter()).sandbox_spec()
    try:
        return (await provider.build_image(spec, lambda _: None))[0]
    finally:
        await provider.close()


def test_a_pass_counts_for_one_build_on_one_machine(tmp_path: Path) -> None:
    passed, image = PassedTests(tmp_path), ImageInfo(name="i", snapshot="s", digest="d", state="active", created=7.5)
    assert not passed.has(image)
    passed.add(image)
    assert (
        passed.has(image) and not passed.has(replace(image, created=8.0)) and not passed.has(replace(image, name="j"))
    )
    (tmp_path / "images/i.json").write_text("[")
    assert not passed.has(image)
    passed.forget("i")
    passed.forget("i")


def test_what_needs_no_image_gets_none(settings: Settings) -> None:
    local = settings.model_copy(update={"sandbox": Choice(name="local")})
    assert asyncio.run(remote_images.build(local, NullReporter())) is None
    assert list(asyncio.run(remote_images.list_all(local))) == []
    with pytest.raises(ConfigError, match="'local' has no images"):
        asyncio.run(remote_images.delete(local, "mine"))
    text = settings.model_copy(update={"environment": Choice(name="finqa-text")})
    with pytest.raises(ConfigError, match="runs no server in a sandbox"):
        asyncio.run(remote_images.build(text, NullReporter()))
