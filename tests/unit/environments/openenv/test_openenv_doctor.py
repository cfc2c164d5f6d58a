"""`finqa doctor --environment openenv` shows what `openenv validate` finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finqa_plugins.environments.openenv.openenv_doctor import checks
from finqa_plugins.environments.openenv_finqa.server.openenv_names import HAS_TASKS

pytestmark = pytest.mark.skipif(not HAS_TASKS, reason="openenv-core 0.3 has other checks")

DEPLOYED = Path(__file__).parents[4] / "deploy/openenv_finqa"


def settings(**options: object) -> dict[str, Any]:
    return {"environment": {"name": "openenv", "options": options}, "sandbox": {"name": "local"}}


def test_a_folder_that_fails_a_check_is_a_warning_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "app.py").touch()
    (tmp_path / "openenv.yaml").write_text("spec_version: 1\nname: x\napp: server.app:app\nvalidation: 3\n")
    (found,) = checks(settings(module=str(tmp_path)))
    assert found.status == "warn" and "`validation:` must be a mapping" in found.detail
    assert found.remedy == f"openenv validate {tmp_path} --level static --skip-build"


def test_our_own_folder_passes() -> None:
    assert not checks(settings(module=str(DEPLOYED)))


@pytest.mark.parametrize("options", [{}, {"image": "x"}, {"module": "a.b:c"}, {"url": "nonsense"}])
def test_nothing_else_is_checked(options: dict[str, object]) -> None:
    assert not checks(settings(**options))
