"""`finqa snapshot serve`: the server of a snapshot for trainers and agents that are not finqa."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from fixtures.small_snapshot import build_small_snapshot


@contextmanager
def served(home: Path, *options: str, **variables: str) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """What the command printed, and its process, which has become the server."""
    name = build_small_snapshot(home)[0].name
    command = [sys.executable, "-m", "finqa_cli", "snapshot", "serve", name, "--port", "0", "--json", *options]
    environment = {**os.environ, "FINQA_HOME": str(home), "SECRET_API_KEY": "x", **variables}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline() or "{}"), process
    finally:
        process.kill()
        process.communicate()


def test_a_server_for_all_has_a_token_and_no_other_secret(tmp_path: Path) -> None:
    with served(tmp_path, "--host", "0.0.0.0") as (shown, process):
        url = f"http://127.0.0.1:{shown['url'].rpartition(':')[2]}"
        assert httpx.get(f"{url}/list_environments", timeout=60).status_code == 401
        token = {"Authorization": f"Bearer {shown['token']}"}
        assert httpx.get(f"{url}/metadata", headers=token, timeout=60).json()["name"] == "finqa_env"
        assert "SECRET_API_KEY" not in Path(f"/proc/{process.pid}/environ").read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_a_token_of_the_user_is_used_and_not_shown(tmp_path: Path) -> None:
    with served(tmp_path, FINQA_TOKEN="0123456789abcdef") as (shown, _):
        assert shown["token"] is None and shown["mcp"] == f"{shown['url']}/mcp"
        assert httpx.get(f"{shown['url']}/metadata", timeout=60).status_code == 401


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        name = build_small_snapshot(tmp_path)[0].name
        command = [sys.executable, "-m", "finqa_cli", "snapshot", "serve", name, "--port", port]
        environment = {**os.environ, "FINQA_HOME": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 69 and f"port {port} cannot be used" in done.stderr
