"""Where the key is sent, and that it is shown nowhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fixtures.openai_calls import ask, engine_on, started
from fixtures.openai_server import Fault, OpenAIServer, calls, error_body, openai_server

from finqa_cli.errors import AuthenticationError, EngineError
from finqa_cli.types import ToolCall
from finqa_plugins.engines._http.config import find_key
from finqa_plugins.engines.openai.config import OpenAIEngineConfig

SUBMIT = ToolCall(name="submit_answer", arguments={"answer": "5"})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with openai_server(lambda body: calls((SUBMIT.name, SUBMIT.arguments))) as running:
        yield running


async def test_a_key_is_sent_and_never_shown(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key = "sk-right-0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", server.key)
    async with started(server) as engine:
        assert (await engine.respond(ask())).tool_call == SUBMIT
    wrong = "sk-wrong-0123456789"
    monkeypatch.setenv("FINQA_TEST_KEY", wrong)
    for options in ({"api_key": wrong}, {"api_key_env": "FINQA_TEST_KEY"}):
        with pytest.raises(AuthenticationError, match="Incorrect API key provided") as raised:
            await engine_on(server, **options).start()
        assert wrong not in f"{raised.value.message} {raised.value.remedy}" and raised.value.exit_code == 77
    for options, told in (({"api_key_env": "FINQA_NO_KEY"}, "FINQA_NO_KEY is not set"), ({"api_key": "a\nb"}, "ASCII")):
        with pytest.raises(AuthenticationError, match=told):
            await engine_on(server, **options).start()


async def test_the_key_of_openai_goes_nowhere_else_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    assert find_key(OpenAIEngineConfig(base_url="https://example.org/v1")) is None
    for config in (
        OpenAIEngineConfig(),
        OpenAIEngineConfig(base_url="http://localhost:1/v1"),
        OpenAIEngineConfig(base_url="https://example.org/v1", api_key_env="OPENAI_API_KEY"),
    ):
        found = find_key(config)
        assert found is not None and found.get_secret_value() == "sk-mine"
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(AuthenticationError, match="OPENAI_API_KEY is not set"):
        find_key(OpenAIEngineConfig())


@pytest.mark.parametrize("before", range(360, 420, 7))
async def test_a_key_is_hidden_before_the_words_around_it_are_cut(server: OpenAIServer, before: int) -> None:
    server.faults = [Fault(status=400, body=error_body("x" * before + " sk-right-0123456789 was given" + "y" * 100))]
    async with started(server, api_key="sk-right-0123456789") as engine:
        with pytest.raises(EngineError, match="xxx") as raised:
            await engine.respond(ask())
    assert "sk-r" not in raised.value.message
