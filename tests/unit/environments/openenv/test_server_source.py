from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from fixtures.reserved_ports import reserved_port

from finqa_cli.errors import ConfigError
from finqa_plugins.environments.openenv.config import OpenEnvConfig
from finqa_plugins.environments.openenv.server_source import server_spec
from finqa_plugins.sandboxes.local.server_process import ServerProcess

PROJECT = """[project]
name = "openenv-number"
dependencies = ["openenv-core[core]>=0.2.2", "numpy"]
[tool.setuptools]
packages = ["number_env", "number_env.server"]
package-dir = { "number_env" = ".", "number_env.server" = "server" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    (folder / "server").mkdir(parents=True)
    (folder / "server" / "app.py").touch()
    return folder


def test_a_project_names_its_package_and_its_requirements(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "openenv.yaml").write_text("app: server.app:application\nport: 7860\n")
    spec = server_spec(OpenEnvConfig(module=str(folder)))
    assert spec is not None and spec.source is not None
    assert spec.source.app == "number_env.server.app:application" and spec.source.project
    assert spec.source.requirements == ("openenv-core[core]>=0.2.2", "numpy")
    assert spec.port == 7860 and "clone.server.app:application" in spec.command, "local processes import the folder"


def test_an_app_may_be_named_from_the_root_of_its_repository(folder: Path) -> None:
    (folder / "openenv.yaml").write_text(f"app: {folder.parent.name}.clone.server.app:app\n")
    spec = server_spec(OpenEnvConfig(module=str(folder)))
    assert spec is not None and spec.source is not None and spec.source.app == "clone.server.app:app"
    assert "clone.server.app:app" in spec.command and str(folder.parent.parent) in spec.command[2].split(":")
    (folder / "openenv.yaml").write_text("app: elsewhere.server.app:app\n")
    with pytest.raises(ConfigError, match=r"it has no elsewhere/server/app\.py"):
        server_spec(OpenEnvConfig(module=str(folder)))


def test_without_a_project_the_servers_requirements_are_installed(folder: Path) -> None:
    (folder / "server" / "requirements.txt").write_text("# for the server\nopenenv-core>=0.2\n\npyyaml\n")
    spec = server_spec(OpenEnvConfig(module=str(folder)))
    assert spec is not None and spec.source is not None and not spec.source.project
    assert spec.source.requirements == ("openenv-core>=0.2", "pyyaml") and spec.source.app == "clone.server.app:app"


@pytest.mark.parametrize("name", ["server/Dockerfile", "Dockerfile"])
def test_the_recipe_of_images_is_the_dockerfile_where_there_is_one(folder: Path, name: str) -> None:
    def chosen(recipe: str) -> Path | None:
        spec = server_spec(OpenEnvConfig.model_validate({"module": str(folder), "recipe": recipe}))
        assert spec is not None and spec.source is not None
        return spec.source.dockerfile

    assert chosen("auto") is None
    with pytest.raises(ConfigError, match=r"has no server/Dockerfile and no Dockerfile") as refused:
        chosen("dockerfile")
    assert "recipe=packages" in refused.value.remedy
    (folder / name).touch()
    assert chosen("auto") == chosen("dockerfile") == folder / name
    assert chosen("packages") is None


GRADIO = "app_names = ['gradio']"
SERVER = """
import json, sys
{imported}

async def app(scope, receive, send):
    loaded = getattr(sys.modules.get("gradio"), "app_names", None)
    body = json.dumps([loaded, sys.argv[1:2]]).encode()
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": body}})
"""
GUARDED = "try:\n    import gradio\nexcept ImportError:\n    pass\n"
MISLEADING = "try:\n    from . import ui\nexcept ImportError:\n    import no_such_module\n"
"""As in repl_env: a failed import is taken for a sign that the app is not in a package."""


@pytest.mark.parametrize(
    ("imported", "web", "loaded"),
    [
        (GUARDED, False, None),
        (GUARDED, True, ["gradio"]),
        ("import gradio", False, ["gradio"]),
        (MISLEADING, False, ["gradio"]),
        ("import models", False, None),
    ],
    ids=["guarded", "web interface", "needed", "misleading", "of the folder"],
)
def test_gradio_is_imported_where_it_is_needed(
    imported: str, web: bool, loaded: list[str] | None, folder: Path
) -> None:
    """A stand-in for gradio beside the folder, which the app imports when it may."""
    (folder / "server" / "app.py").write_text(SERVER.format(imported=imported))
    (folder / "server" / "ui.py").write_text("import gradio")
    (folder / "models.py").touch()
    (folder.parent / "gradio.py").write_text(GRADIO)
    spec = server_spec(OpenEnvConfig(module=str(folder)))
    assert spec is not None
    with reserved_port() as port:
        command = [part.replace("{host}", "127.0.0.1").replace("{port}", str(port)) for part in spec.command]
        process = subprocess.Popen(command, env={"ENABLE_WEB_INTERFACE": "true"} if web else {}, cwd=folder)
        try:
            assert json.loads(_first_answer(port, process)) == [loaded, ["clone.server.app:app"]]
        finally:
            process.kill()
            process.wait()


async def test_an_app_that_cannot_be_imported_is_named_at_once(folder: Path, tmp_path: Path) -> None:
    (folder / "server" / "app.py").write_text("import no_such_module")
    spec = server_spec(OpenEnvConfig(module=str(folder)))
    assert spec is not None
    process = ServerProcess(spec, tmp_path / "log")
    try:
        with pytest.raises(ConfigError, match="No module named 'no_such_module'") as refused:
            await process.wait_until_healthy(60)
    finally:
        await process.stop(1)
    assert "environment.options.python" in refused.value.remedy
    assert refused.value.message.count("Traceback") == 1


def _first_answer(port: int, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server exited"
        try:
            return httpx.get(f"http://127.0.0.1:{port}/").text
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the server did not start")
