"""Every route of a server needs its key, also those of the development mode."""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from vllm_server.running import KEY, Vllm

SLEEP_AND_WEIGHTS = {"/sleep", "/wake_up", "/collective_rpc", "/pause", "/reset_prefix_cache"}
UNLISTED = ("/metrics", "/docs", "/openapi.json", "/invocations", "/nothing")


def status(url: str, method: str, key: str = "") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urlopen(Request(url, method=method, headers=headers), timeout=30) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


@pytest.mark.timeout(600)
def test_no_route_answers_without_the_key(server: Vllm) -> None:
    root = server.url.removesuffix("/v1")
    with urlopen(Request(f"{root}/openapi.json", headers={"Authorization": f"Bearer {KEY}"}), timeout=30) as answer:
        routes = json.load(answer)["paths"]
    assert routes.keys() >= SLEEP_AND_WEIGHTS, "the server is in development mode"
    asked = [(path, method.upper()) for path, methods in routes.items() for method in methods]
    asked += [(path, method) for path in UNLISTED for method in ("GET", "POST")]
    assert [one for one in asked if status(root + one[0], one[1]) != 401] == []
    assert [one for one in asked if status(root + one[0], one[1], "wrong") != 401] == []
    assert status(f"{root}/health", "GET", KEY) == 200
