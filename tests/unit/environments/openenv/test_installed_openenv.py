"""openenv and openenv-core in one folder overwrite each other; in two folders one of them is in front."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAYS = """
from finqa_plugins.environments._openenv.installed import overwritten
from finqa_plugins.environments.openenv_finqa.config import readiness
from finqa_plugins.environments.openenv_finqa.server.run_server import main
print(overwritten())
print(readiness({"environment": {"name": "finqa", "options": {}}, "sandbox": {"name": "local"}}))
print(main({"FINQA_SNAPSHOT": "/nowhere"}))
"""


def test_the_server_imports_neither_gradio_nor_fastmcp() -> None:
    code = "import sys, finqa_plugins.environments.openenv_finqa.server.server_app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"gradio", "fastmcp", "mcp"} & set(done.stdout.split())


@pytest.mark.parametrize("folders", [("one", "one"), ("one", "other")], ids=["one folder", "two folders"])
def test_a_mixture_is_found_by_doctor_and_by_the_server(tmp_path: Path, folders: tuple[str, str]) -> None:
    for name, folder in zip(("openenv-0.10.0", "openenv_core-0.3.0"), folders, strict=True):
        info = tmp_path / folder / f"{name}.dist-info"
        info.mkdir(parents=True)
        named, version = name.split("-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {named}\nVersion: {version}\n")
    path = os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "other"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SAYS],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    mixed = folders[0] == folders[1]
    assert ("openenv 0.10.0 and openenv-core 0.3.0 are installed" in done.stdout) == mixed
    assert ("pip uninstall --yes openenv openenv-core" in done.stdout) == mixed
    assert done.stdout.splitlines()[-1] == ("78" if mixed else "65")
    assert ("they exclude each other" in done.stderr) == mixed
