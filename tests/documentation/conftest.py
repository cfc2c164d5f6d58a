"""The documentation site, built once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.documentation import build_site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    built = build_site(folder)
    assert built.returncode == 0, built.stderr
    return folder
