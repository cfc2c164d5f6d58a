"""What a server says about itself, and whom it is asked through."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fixtures.reserved_ports import reserved_port

from finqa_plugins.environments._openenv.server_facts import is_loopback, read_facts

SECRET = "a token of the server"


class Describes(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert self.headers["Authorization"] == f"Bearer {SECRET}"
        body = json.dumps({"name": "NumberEnvironment", "action": {"type": "object"}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Describes) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def test_a_proxy_of_the_environment_does_not_see_this_machine(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with reserved_port() as closed:  # a proxy that answers nothing
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed}")
        facts = await read_facts(address, token=SECRET)
    assert (facts.name, facts.action) == ("NumberEnvironment", {"type": "object"})


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:8000/base", True),
        ("ws://[::1]:1/", True),
        ("http://localhost/x", True),
        ("https://example.com/", False),
        ("http://127.0.0.1.example.com/", False),
        ("http://10.0.0.1/", False),
        ("nonsense", False),
    ],
)
def test_addresses_of_this_machine(url: str, here: bool) -> None:
    assert is_loopback(url) is here
