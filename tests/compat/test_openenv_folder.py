"""OpenEnv's own checks pass on the environment folder and on the running server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

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
