from __future__ import annotations

import os

import pytest
from fixtures.loopback_daytona import with_tests_importable


@pytest.fixture(autouse=True)
def _servers_can_import_fixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in with_tests_importable(os.environ).items():
        monkeypatch.setenv(name, value)
