"""A reply that is too long, or that grows when it is unpacked, is refused before it fills memory."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest
from fixtures.openai_calls import ask, started
from fixtures.openai_server import Fault, OpenAIServer, openai_server, says
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import EngineError
from finqa_plugins.engines._http import transport
from finqa_plugins.engines._http.transport import BadBodyError, Body

LIMIT = 4096


@given(st.binary(max_size=3 * LIMIT), st.booleans(), st.integers(1, 500))
def test_what_fits_arrives_whole_and_more_is_never_kept(content: bytes, packed: bool, step: int) -> None:
    body = Body("gzip" if packed else "", LIMIT)
    sent = gzip.compress(content) if packed else content
    pieces = (sent[start : start + step] for start in range(0, len(sent), step))
    if len(content) <= LIMIT:
        for piece in pieces:
            body.add(piece)
        assert body.data == content
    else:
        with pytest.raises(BadBodyError, match="longer than 4096 bytes"):
            for piece in pieces:
                body.add(piece)
        assert len(body.data) <= LIMIT + step


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(50 * 2**20))
    body = Body("x-gzip", LIMIT)
    with pytest.raises(BadBodyError, match="longer than"):
        body.add(bomb)
    assert len(bomb) < 60_000 and len(body.data) == LIMIT + 1


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(transport, "LARGEST_REPLY", LIMIT)
    with openai_server(lambda body: says("12")) as running:
        yield running


@pytest.mark.parametrize(
    ("body", "packing", "told"),
    [
        (b" " * (LIMIT + 1), "", "the reply is longer than 4096 bytes"),
        (gzip.compress(b" " * 10**6), "gzip", "the reply is longer than 4096 bytes"),
        (b"\x1f\x8bnothing", "gzip", "the reply cannot be decompressed"),
        (b"\x0b\x02\x80{}\x03", "br", "compressed as 'br', which was not requested"),
    ],
)
async def test_such_a_reply_is_a_fault_that_says_why(
    server: OpenAIServer, body: bytes, packing: str, told: str
) -> None:
    server.faults = [Fault(times=2, status=200, body=body, headers={"Content-Encoding": packing} if packing else {})]
    async with started(server, max_retries=1) as engine:
        with pytest.raises(EngineError, match=f"after 2 tries: .*{told}"):
            await engine.respond(ask())
        assert (await engine.respond(ask())).text == "12"
    assert server.log[-1].headers["Accept-Encoding"] == "gzip"


async def test_a_packed_completion_is_read(server: OpenAIServer) -> None:
    packed = gzip.compress(json.dumps({"choices": [says("34")]}).encode())
    server.faults = [Fault(status=200, body=packed, headers={"Content-Encoding": "gzip"})]
    async with started(server) as engine:
        assert (await engine.respond(ask())).text == "34"
