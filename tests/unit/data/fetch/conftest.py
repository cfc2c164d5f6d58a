from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fetch_cases import COMMIT, FINQA, IMPATIENT, SNORKEL, Fetch, Watch, signed_out
from fixtures.hub_server import HubServer, hub_server

from finqa_cli.data.fetch import SOURCES, FetchReport, fetch
from finqa_cli.data.fetch.retries import Patience


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """The loopback hub, with the real client online, signed out and without telemetry."""
    from huggingface_hub import constants

    signed_out(monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with hub_server() as server:
        server.add("snorkelai/finqa-data", SNORKEL, commit=COMMIT, licence="apache-2.0")
        server.add("czyssrs/FinQA", FINQA, commit=SOURCES["finqa"].revision)
        yield server


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def bring(hub: HubServer, watch: Watch, tmp_path: Path) -> Fetch:
    """Fetches a source from the loopback hub into `tmp_path/data`."""

    def run(
        source: str, *, folder: Path = tmp_path / "data", patience: Patience = IMPATIENT, revision: str | None = None
    ) -> FetchReport:
        return fetch(SOURCES[source], folder, revision=revision, endpoint=hub.url, observer=watch, patience=patience)

    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"
