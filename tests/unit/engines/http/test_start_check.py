"""What a server must show before a run trusts it with tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.lora_files import make_base
from fixtures.openai_server import openai_server
from fixtures.served_tokens import ask, engine_on, started
from fixtures.token_server import TokenServerFixture, log_softmax, token_server
from hypothesis import assume, given
from hypothesis import strategies as st

from finqa_cli.errors import AuthenticationError, ConfigError, FinqaError
from finqa_plugins.engines._http.served_engine import COOL, wrong_distribution


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_base(tmp_path / "base")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, model: Path) -> Iterator[TokenServerFixture]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with token_server(str(model)) as running:
        yield running


async def refusal(server: TokenServerFixture | str, model: Path | str, **options: Any) -> FinqaError:
    engine = engine_on(server, model, **{"max_retries": 0, **options})
    with pytest.raises(FinqaError) as raised:
        await engine.start()
    await engine.close()
    assert isinstance(raised.value, ConfigError) and raised.value.remedy
    return raised.value


@pytest.mark.parametrize(
    ("mode", "told"), [("raw", "do not use the temperature"), ("logits", "returns logits|no token")]
)
async def test_logprobs_of_another_distribution_are_refused(
    server: TokenServerFixture, model: Path, mode: Any, told: str
) -> None:
    server.logprobs = mode
    error = await refusal(server, model)
    assert any(one in error.message for one in told.split("|"))
    assert "--logprobs-mode processed_logprobs" in error.remedy and not server.loads


async def test_a_server_without_ids_or_logprobs_is_refused_with_the_reason(
    server: TokenServerFixture, model: Path
) -> None:
    server.spoil = lambda document: document["choices"][0].pop("token_ids")
    assert (
        "no token ids (choices[0].token_ids; the server must take return_token_ids)"
        in (await refusal(server, model)).message
    )
    server.spoil = lambda document: document["choices"][0].pop("logprobs")
    error = await refusal(server, model)
    assert "no log-probabilities" in error.message and "--engine transformers" in error.remedy
    server.spoil = None
    server.max_model_len = None
    assert "max_model_len" in (await refusal(server, model)).message


async def test_a_server_for_chat_alone_is_refused() -> None:
    with openai_server() as chat:
        assert "There is no completions API" in (await refusal(chat.url, "analyst")).message


async def test_a_server_that_cannot_load_adapters_is_refused(server: TokenServerFixture, model: Path) -> None:
    for folder in (model, "acme/analyst"):  # with its weights here, and without
        server.updating = False
        error = await refusal(server, folder)
        assert "cannot load adapters" in error.message and "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in error.remedy
        server.updating, server.lora = True, False
        assert "LoRA is not enabled" in (await refusal(server, folder)).message
        server.lora = True
    server.max_rank = 4
    assert "LoRA rank 8 is greater than max_lora_rank 4" in (await refusal(server, model)).message
    server.max_rank, server.ignores_adapters = 8, True
    assert "serves the base model." in (await refusal(server, model)).message
    server.ignores_adapters, server.sees = False, lambda path: Path("/elsewhere")
    assert "adapter_paths" in (await refusal(server, model)).message


async def test_nothing_is_left_behind_on_the_server(server: TokenServerFixture, model: Path) -> None:
    async with started(server, model) as engine:
        assert server.loads == server.unloads and len(server.loads) == 1
        await engine.generate(ask())
    async with started(server, "acme/analyst") as engine:  # the base model is elsewhere: the only one is taken
        await engine.generate(ask())
    assert len(server.loads) == 1


async def test_options_for_chat_are_no_options_for_tokens(
    server: TokenServerFixture, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"extra_body applies to chat requests;"):
        engine_on(server, model, extra_body={"top_k": 5})
    with pytest.raises(ConfigError, match=r"omit applies to chat requests;"):
        engine_on(server, model, omit=("seed", "temperature"))
    monkeypatch.setenv("OPENAI_API_KEY", "")
    with pytest.raises(AuthenticationError):
        engine_on("https://api.openai.com/v1", model)


@given(
    st.lists(st.floats(-8, 8), min_size=5, max_size=40),
    st.floats(-30, 30),
)
def test_distributions_are_told_apart(values: list[float], shift: float) -> None:
    warm_all, cool_all = log_softmax(values), log_softmax(values, COOL)
    order = sorted(range(len(values)), key=values.__getitem__)[-5:]
    assume(values[order[-1]] - values[order[0]] > 0.02)

    def place(row: list[float]) -> dict[str, float]:
        return {str(token): row[token] for token in order}

    assert wrong_distribution(place(warm_all), place(cool_all)) == ""
    assert "do not use" in wrong_distribution(place(warm_all), place(warm_all))
    logits = [value + shift for value in values]
    cool_logits = place([value / COOL for value in logits])
    if logits[order[-1]] < -0.05:  # above 0 they are no log-probabilities in the first place
        assert wrong_distribution(place(logits), cool_logits) == "it returns logits instead of log-probabilities"
    assert math.isfinite(sum(cool_logits.values()))


def test_equally_likely_tokens_prove_nothing() -> None:
    even = {str(token): -1.0 for token in range(5)}
    for first in (even, {}):
        assert "cannot be determined" in wrong_distribution(first, even)
