"""The engine against a real server on loopback: what it says, what it repeats, and what it gives up on."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import structlog
from fixtures.openai_calls import ask, engine_on, started
from fixtures.openai_server import Fault, OpenAIServer, calls, error_body, openai_server, says

from finqa_cli.contracts import ChatEngine, EngineContext, TokenEngine
from finqa_cli.errors import AuthenticationError, ConfigError, EngineError, EpisodeError, ServiceUnavailableError
from finqa_cli.extend import registry
from finqa_cli.types import ToolCall

ANSWER = calls(("submit_answer", {"answer": "5"}))
SUBMIT = ToolCall(name="submit_answer", arguments={"answer": "5"})
HANG_S = 60.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with openai_server(lambda body: ANSWER) as running:
        yield running


def test_it_is_registered_as_a_chat_engine_that_cannot_train() -> None:
    component = registry().find("engine", "openai")
    assert not component.modelless
    engine = registry().create("engine", "openai", {}, EngineContext(model="m"))
    assert isinstance(engine, ChatEngine) and not isinstance(engine, TokenEngine)


def test_each_replica_has_a_server_of_its_own() -> None:
    urls = ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1/"]

    def create(replicas: int, **options: Any) -> Any:
        context = EngineContext(model="m", replica=replicas - 1, replicas=replicas, needs_tokens=True)
        return registry().create("engine", "openai", options, context)

    assert create(2, base_urls=urls)._server.url == "http://127.0.0.1:2/v1"
    for replicas, options in ((2, {"base_url": urls[0]}), (3, {"base_urls": urls})):
        with pytest.raises(ConfigError, match=f"there are {replicas} replicas"):
            create(replicas, **options)
    with pytest.raises(ConfigError, match="not both"):
        create(2, base_urls=urls, base_url=urls[0])


async def test_start_and_close_are_idempotent(server: OpenAIServer) -> None:
    engine = engine_on(server)
    await asyncio.gather(engine.start(), engine.start())
    assert len(server.log) == 1
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.respond(ask())


async def test_a_call_goes_out_and_comes_back(server: OpenAIServer) -> None:
    async with started(server) as engine:
        turn = await engine.respond(ask(temperature=0.3, seed=9, max_tokens=77))
    assert turn.tool_call == SUBMIT and "<tool_call>" in turn.text
    (body,) = server.asked
    assert body["model"] == "analyst" and body["temperature"] == 0.3 and body["max_tokens"] == 77
    assert body["tools"][0]["function"]["name"] == "submit_answer"


async def test_usage_is_kept_per_episode_and_told_in_the_log(server: OpenAIServer) -> None:
    prices = {"analyst": {"input": 1.0, "output": 2.0}}
    with structlog.testing.capture_logs() as logged:
        async with started(server, prices=prices) as engine:
            for key in ("a/0#0000", "a/0#0001", "b/0#0000"):
                await engine.respond(ask(key))
            assert engine.usage("a/0") == {
                "requests": 2,
                "prompt_tokens": 200,
                "cached_tokens": 0,
                "completion_tokens": 20,
                "unmetered": 0,
                "retries": 0,
                "cost_usd": 0.00024,
            }
    (line,) = (line for line in logged if line["event"] == "tokens used in all")
    assert line["requests"] == 3 and line["cost_usd"] == 0.00036


async def test_a_model_without_a_price_has_no_cost_and_says_so(server: OpenAIServer) -> None:
    with structlog.testing.capture_logs() as logged:
        async with started(server, prices={"other": {"input": 1.0, "output": 2.0}}) as engine:
            await engine.respond(ask("a#0"))
            assert engine.usage("a")["cost_usd"] is None
    assert any(line["log_level"] == "warning" and "no price" in line["event"] for line in logged)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500, body=b"oops"),
        Fault(status=503, body=error_body("Loading model")),
        Fault(status=429, body=error_body("slow down"), headers={"Retry-After": "0"}),
        Fault(status=200, body=b'{"choices": [{"mess'),
        Fault(status=200, body=b"[]"),
        Fault(status=200, body=b"\xff\xfe"),
        Fault(status=200, body=b'{"choices": []}'),
        Fault(status=200, body=error_body("upstream died")),
        Fault(cut=True),
        Fault(hang_s=5),
    ],
)
async def test_passing_failures_are_repeated(server: OpenAIServer, fault: Fault) -> None:
    fault.times = 2
    server.faults = [fault]
    async with started(server, request_timeout_s=1.0 if fault.hang_s else 60.0) as engine:
        assert (await engine.respond(ask())).tool_call == SUBMIT
    first, second, third = server.asked
    assert first == second == third


async def test_retry_after_is_honoured_by_all(server: OpenAIServer) -> None:
    server.faults = [Fault(status=429, headers={"Retry-After": "0.4"}, body=error_body("slow down"))]
    async with started(server, max_concurrent=1) as engine:
        await asyncio.gather(*(engine.respond(ask(f"{number}#0")) for number in range(3)))
    refused, *later = [request.at for request in server.log if request.path.endswith("completions")]
    assert len(later) == 3 and min(later) - refused >= 0.4


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault(status=429, body=error_body("slow down")), "rate limit .* was exceeded in 3 tries: slow down"),
        (Fault(status=429, headers={"Retry-After": "3600"}), r"was exceeded in 1 try.*requests a pause of 3600 s"),
        (Fault(status=500, body=b"<h1>oops</h1>"), r"after 3 tries: oops \(HTTP 500\)"),
        (Fault(status=200, body=b"hello"), "sent an invalid response: the reply is not JSON .*'hello'"),
        (Fault(hang_s=5), "no complete reply within 0.8 s"),
        (Fault(status=400, body=error_body("strange")), "rejected the request.*strange"),
    ],
)
async def test_lasting_failures_are_faults_of_the_engine(server: OpenAIServer, fault: Fault, told: str) -> None:
    fault.times = 10
    server.faults = [fault]
    async with started(server, max_retries=2, request_timeout_s=0.8 if fault.hang_s else 60.0) as engine:
        with pytest.raises(EngineError, match=told) as raised:
            await engine.respond(ask())
        assert raised.value.remedy
        server.faults.clear()
        assert (await engine.respond(ask())).tool_call == SUBMIT


async def test_a_request_is_given_up_in_time(server: OpenAIServer) -> None:
    server.faults = [Fault(times=100)]
    async with started(server, give_up_s=0.5, backoff_s=0.2, max_retries=100) as engine:
        began = time.monotonic()
        with pytest.raises(EngineError):
            await engine.respond(ask())
    assert time.monotonic() - began < 15  # a hundred tries take 20 s


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        (Fault(status=403, body=error_body("no")), AuthenticationError, "rejected the API key"),
        (Fault(status=429, body=error_body("no", code="insufficient_quota")), ServiceUnavailableError, "no credit"),
        (Fault(status=404, body=b"nothing"), ConfigError, "no chat completions API"),
        (Fault(status=302, headers={"Location": "/elsewhere"}), ConfigError, "no chat completions API"),
        (
            Fault(status=400, body=error_body('"auto" tool choice requires --enable')),
            ConfigError,
            "does not support tool calls",
        ),
        (
            Fault(status=400, body=error_body("no", code="unknown_parameter", param="top_k")),
            ConfigError,
            "rejects top_k",
        ),
    ],
)
async def test_what_every_request_would_meet_ends_the_run(
    server: OpenAIServer, fault: Fault, kind: type[Exception], told: str
) -> None:
    server.faults = [fault]
    async with started(server) as engine:
        with pytest.raises(kind, match=told) as raised:
            await engine.respond(ask())
    assert not isinstance(raised.value, EpisodeError) and getattr(raised.value, "remedy", "")
    assert len(server.asked) == 1


async def test_an_unknown_model_is_told_with_the_known_ones(server: OpenAIServer) -> None:
    async with started(server, model="analist") as engine:
        with pytest.raises(ConfigError, match=r"no model 'analist'. It serves: analyst\."):
            await engine.respond(ask())


async def test_a_folder_is_no_name(server: OpenAIServer, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="serves: analyst") as raised:
        await engine_on(server, model=str(tmp_path)).start()
    assert raised.value.remedy == "--set engine.options.model=analyst"
    server.models = [str(tmp_path)]  # unless the server was started with it
    async with started(server, model=str(tmp_path)) as engine:
        assert (await engine.respond(ask())).tool_call == SUBMIT
    with pytest.raises(ConfigError, match="needs the name"):
        await engine_on(server, model="").start()


async def test_a_full_context_is_no_fault(server: OpenAIServer) -> None:
    server.faults = [Fault(status=400, body=error_body("too long", code="context_length_exceeded"))]
    async with started(server) as engine:
        turn = await engine.respond(ask())
        assert turn.stop == "full" and turn.tool_call is None
    assert len(server.asked) == 1


async def test_a_reply_is_made_to_fit_what_is_left_of_the_context(server: OpenAIServer) -> None:
    words = "maximum context length is 1000 tokens. You requested 1312 tokens (800 in the messages, 512 in the ...)"
    server.faults = [Fault(status=400, body=error_body(words))]
    async with started(server) as engine:
        assert (await engine.respond(ask())).tool_call == SUBMIT
    assert [body["max_tokens"] for body in server.asked] == [512, 200]


async def test_a_call_left_in_the_text_is_told_once(server: OpenAIServer) -> None:
    server.answer = lambda body: says('<tool_call>\n{"name": "submit_answer"}\n</tool_call>')
    with structlog.testing.capture_logs() as logged:
        async with started(server) as engine:
            turns = [await engine.respond(ask(f"a#{number}")) for number in range(2)]
    assert all(turn.tool_call == ToolCall(name="submit_answer", arguments={}) for turn in turns)
    assert sum("parser" in line["event"] for line in logged) == 1


async def test_requests_at_once_and_in_a_minute_stay_within_their_limits(server: OpenAIServer) -> None:
    three = threading.Barrier(3)

    def slowly(body: Mapping[str, Any]) -> Mapping[str, Any]:
        three.wait(HANG_S)
        time.sleep(0.05)
        return ANSWER

    server.answer = slowly
    async with started(server, max_concurrent=3) as engine:
        await asyncio.gather(*(engine.respond(ask(f"{number}#0")) for number in range(12)))
    assert server.busiest == 3
    server.answer = lambda body: ANSWER
    async with started(server, requests_per_minute=600) as engine:
        began = time.monotonic()
        await asyncio.gather(*(engine.respond(ask(f"{number}#0")) for number in range(5)))
    assert time.monotonic() - began >= 0.4


async def test_cancellation_frees_the_place(server: OpenAIServer) -> None:
    server.faults = [Fault(hang_s=600)]
    async with started(server, max_concurrent=1) as engine:
        hanging = asyncio.create_task(engine.respond(ask("a#0")))
        async with asyncio.timeout(HANG_S):
            while not server.asked or server.faults[0].times:  # noqa: ASYNC110  the server is in threads
                await asyncio.sleep(0.01)
        hanging.cancel()
        assert (await engine.respond(ask("b#0"))).tool_call == SUBMIT
        assert hanging.cancelled()


async def test_nobody_there_is_told_at_once() -> None:
    with pytest.raises(ServiceUnavailableError, match="no server at") as raised:
        await engine_on("http://127.0.0.1:9/v1").start()
    assert not isinstance(raised.value, EpisodeError) and "base_url" in raised.value.remedy


async def test_a_server_without_a_list_of_models_is_taken_at_its_word(server: OpenAIServer) -> None:
    server.models = None
    async with started(server, model="any-model") as engine:
        assert (await engine.respond(ask())).tool_call == SUBMIT


async def test_strange_names_in_the_list_are_passed_over(server: OpenAIServer) -> None:
    server.models = [["analyst"], 3, "analyst"]  # type: ignore[list-item]
    async with started(server, model="analyst") as engine:
        assert (await engine.respond(ask())).tool_call == SUBMIT


async def test_waiting_for_a_place_does_not_count_as_failing(server: OpenAIServer) -> None:
    async with started(server, requests_per_minute=30, give_up_s=1.9) as engine:
        await engine.respond(ask("a#0"))
        server.faults = [Fault()]
        assert (await engine.respond(ask("b#0"))).tool_call == SUBMIT  # it waits for 2 s, then fails once


async def test_the_same_seed_waits_the_same(server: OpenAIServer) -> None:
    async def waits() -> list[float]:
        server.faults = [Fault(times=3)]
        with structlog.testing.capture_logs() as logged:
            async with started(server, backoff_s=0.04) as engine:
                await engine.respond(ask())
        return [line["wait_s"] for line in logged if line["event"] == "request repeated"]

    first = await waits()
    assert first == await waits() and len(first) == 3 and sorted(first) == first
    assert json.dumps(first)
