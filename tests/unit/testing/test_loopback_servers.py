from __future__ import annotations

import sys
from pathlib import Path

import pytest

from finqa_testing.daytona.sandbox_commands import ServerCommand, Servers, server_command


@pytest.mark.parametrize(
    ("text", "module", "arguments"),
    [
        ("A=1 python -m shop --port 1", "shop", ("--port", "1")),
        ("exec uvicorn server.app:app --port 8000", "uvicorn", ("server.app:app", "--port", "8000")),
        (
            "cd /app && exec sh -c 'cd env && uvicorn server.app:app --port 8000'",
            "uvicorn",
            ("server.app:app", "--port", "8000", "--app-dir", "/app/env"),
        ),
        ("cd /app && uvicorn a:b --app-dir /x", "uvicorn", ("a:b", "--app-dir", "/x")),
    ],
)
def test_servers_are_known_by_their_command_line(text: str, module: str, arguments: tuple[str, ...]) -> None:
    parsed = server_command(text)
    assert parsed is not None and parsed[1:] == (module, arguments)


@pytest.mark.parametrize("text", ["ls", "cd /app && ls", "sh -c 'echo uvicorn'", "uvicorn 'a", "cd /app && "])
def test_other_commands_are_left_to_the_shell(text: str) -> None:
    assert server_command(text) is None


async def test_a_sandbox_gets_the_server_with_the_fewest_users(tmp_path: Path) -> None:
    """A server with one session would refuse the second sandbox that shares it while another server is free."""
    servers = Servers(tmp_path, 2)
    try:
        environment = {"PATH": str(Path(sys.executable).parent)}
        used = [ServerCommand("serve", servers.attach("image", "http.server", ("0",), environment)) for _ in range(2)]
        assert used[0].server is not used[1].server
        used[1].end()
        used[1].end()
        assert servers.attach("image", "http.server", ("0",), environment) is used[1].server
        assert servers.attach("image", "http.server", ("1",), environment) not in (used[0].server, used[1].server)
    finally:
        await servers.close()
