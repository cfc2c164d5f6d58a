from __future__ import annotations

import json
from itertools import pairwise

import pytest
from finqa_cli.testing.daytona.http_messages import MalformedRequest, Refusal, Reply, Request, take_body, take_head
from hypothesis import given
from hypothesis import strategies as st

PATHS = st.text("abc/-_.%20", min_size=1, max_size=20).map(lambda text: f"/{text}")


def received(pieces: list[bytes]) -> list[Request]:
    """What comes out of a connection that receives these pieces."""
    buffer, head, found = bytearray(), None, []
    for piece in pieces:
        buffer += piece
        while True:
            head = head or take_head(buffer)
            if head is None or (body := take_body(head, buffer)) is None:
                break
            found.append(Request(head, body))
            head = None
    assert not buffer
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.lists(st.tuples(PATHS, st.binary(max_size=200)), min_size=1, max_size=4), st.lists(st.integers(0, 10_000)))
def test_requests_are_read_the_same_however_they_are_cut(wanted: list[tuple[str, bytes]], places: list[int]) -> None:
    data = b"".join(
        f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\nX-Name:  Value \r\n\r\n".encode() + body
        for path, body in wanted
    )
    found = received(cut(data, places))
    assert [(request.head.target, request.body) for request in found] == wanted
    assert all(request.head.headers["x-name"] == "Value" for request in found)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5), st.lists(st.integers(0, 10_000)))
def test_chunked_bodies_are_put_together(chunks: list[bytes], places: list[int]) -> None:
    head = b"PUT /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = head + b"".join(f"{len(chunk):X};a=b\r\n".encode() + chunk + b"\r\n" for chunk in chunks) + b"0\r\n\r\n"
    (request,) = received(cut(data, places))
    assert request.body == b"".join(chunks)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_wait_or_are_refused(data: bytes) -> None:
    buffer = bytearray(data + b"\r\n\r\n")
    try:
        head = take_head(buffer)
        if head is not None:
            take_body(head, buffer)
    except MalformedRequest as error:
        assert str(error)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n0\r\n\r\n",
        b"GET /" + b"x" * 70_000,
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    buffer = bytearray(data)
    with pytest.raises(MalformedRequest):
        head = take_head(buffer)
        assert head is not None
        take_body(head, buffer)


def test_queries_and_segments_are_unquoted() -> None:
    data = b"GET /a%20b/c?labels=%7B%22x%22%3A1%7D&states=started,error&states=stopped HTTP/1.1\r\n\r\n"
    (request,) = received([data])
    assert request.parts == ("a b", "c")
    assert json.loads(request.query("labels")) == {"x": 1}
    assert request.queries("states") == ["started", "error", "stopped"]
    assert request.query("missing", "default") == "default"


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    (request,) = received([f"POST / HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body])
    with pytest.raises(Refusal, match="no JSON"):
        request.json()


def test_replies_carry_their_length_and_head_has_no_body() -> None:
    reply = Reply(201, {"a": 1})
    assert reply.encoded() == (
        b'HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{"a": 1}'
    )
    assert reply.encoded("HEAD").endswith(b"Content-Length: 8\r\n\r\n")
    assert Reply(204).encoded() == b"HTTP/1.1 204 No Content\r\n\r\n"


def test_errors_have_the_shape_of_daytona() -> None:
    body = json.loads(Refusal(409, "taken", code="X").reply("/api/sandbox").content())
    assert (body["statusCode"], body["message"], body["code"], body["source"]) == (409, "taken", "X", "DAYTONA_API")
    assert json.loads(Refusal(400, "no").reply("/toolbox/x").content())["source"] == "DAYTONA_DAEMON"
