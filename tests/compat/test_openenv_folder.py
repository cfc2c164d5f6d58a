"""OpenEnv's own checks pass on the environment folder and on the running server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from compat.stock_versions import StockOpenEnv
from fixtures.finqa_server import RunningServer

FOLDER = Path(__file__).parents[2] / "deploy/openenv_finqa"


def validate(stock: StockOpenEnv, *arguments: str | Path) -> str:
    command = [stock.command, "validate", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_folder(stock: StockOpenEnv) -> None:
    if stock.version == "0.3.0":
        assert "Ready for multi-mode deployment" in validate(stock, FOLDER)
        modes = json.loads(validate(stock, FOLDER, "--json", "--verbose"))["deployment_modes"]
        assert modes == dict.fromkeys(("docker", "openenv_serve", "uv_run", "python_module"), True)
    else:
        assert "Verdict: PASS" in validate(stock, FOLDER, "--level", "static")
        assert "FAIL" not in validate(stock, FOLDER), "levels that need docker are skipped, with their reason"


def test_the_running_server(stock: StockOpenEnv, our_server: RunningServer) -> None:
    report = json.loads(validate(stock, "--url", our_server.url(), "--json"))
    assert report["passed"]
    assert report["summary"]["failed_criteria"] == []
    assert report["standard_profile"] == "openenv-http/1.x"


def test_the_catalog_card(stock: StockOpenEnv, tmp_path: Path) -> None:
    if stock.version == "0.3.0":
        pytest.skip("openenv-core 0.3 has no catalog")
    repository = tmp_path / "repository"
    shutil.copytree(FOLDER, repository / "deploy" / FOLDER.name, ignore=shutil.ignore_patterns("__pycache__"))
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", repository, *identity, *arguments], check=True)
    where = {"repository": repository, "root": "deploy", "output": tmp_path / "catalog.json"}
    named = {"repository-uri": "https://github.com/example/finqa.git", "publisher": "example.org"}
    options = [word for name, value in {**where, **named}.items() for word in (f"--{name}", str(value))]
    subprocess.run([stock.command, "catalog", "build", *options], check=True, timeout=300)
    catalog = json.loads((tmp_path / "catalog.json").read_text())
    (entry,) = catalog["entries"]
    assert catalog["complete"] and entry["data"]["license"] == "Apache-2.0"
    assert entry["capabilities"] == ["get_descriptions", "get_table_info", "sql_query", "submit_answer"]
