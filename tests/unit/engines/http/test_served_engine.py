"""Token engine on a server: versions as adapters, swapped in flight; what is restored and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.lora_files import make_base, make_lora
from fixtures.openai_server import Fault, error_body
from fixtures.served_tokens import ask, engine_on, served_by, started
from fixtures.token_server import BASE, TokenServerFixture, token_server, weights_of

from finqa_cli.contracts import EngineContext, TokenEngine
from finqa_cli.errors import AuthenticationError, ConfigError, EngineError, ServiceUnavailableError
from finqa_cli.types import Completion, PolicyVersion
from finqa_plugins.engines._http.config import ServerConfig
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines._http.served_engine import ServedTokenEngine
from finqa_plugins.engines._http.token_server import TokenServer
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.vllm_engine import VllmEngine


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_base(tmp_path / "base")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, model: Path) -> Iterator[TokenServerFixture]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with token_server(str(model)) as running:
        yield running


def version(number: int, model: Path, adapter: Path | None = None) -> PolicyVersion:
    return PolicyVersion(number=number, model=str(model), adapter=adapter)


async def settled(engine: TokenEngine) -> None:
    """Until dropped adapters are gone."""
    await asyncio.sleep(0.1)


async def test_tokens_and_logprobs_come_as_they_were_drawn(server: TokenServerFixture, model: Path) -> None:
    async with started(server, model) as engine:
        assert engine.max_context == 256 and not engine.lockstep
        assert isinstance(engine, TokenEngine)
        for settings in ({"temperature": 0.6, "seed": 5}, {"temperature": 0.0}, {"temperature": 1.3, "seed": 6}):
            request = ask(**settings)
            completion = await engine.generate(request)
            assert served_by("", request, completion) and completion.policy_version == 0
        free = await engine.generate(ask(temperature=0.0, max_tokens=6))
        stop = free.token_ids[2]
        ended = await engine.generate(ask(temperature=0.0, max_tokens=6, stop_ids=(stop,)))
        assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1] and ended.stop == "stop"
    body = server.bodies[-1]
    assert body["ignore_eos"] and body["top_k"] == -1 and body["repetition_penalty"] == 1.0


async def test_a_prompt_that_fills_the_context_is_the_episodes_own_limit(
    server: TokenServerFixture, model: Path
) -> None:
    async with started(server, model) as engine:
        full = await engine.generate(ask(ids=(1,) * 256))
        assert (full.token_ids, full.stop) == ((), "length")
        assert len((await engine.generate(ask(ids=(1,) * 254, max_tokens=9))).token_ids) == 2
        server.max_model_len = 100  # the server is stricter than it said
        refused = await engine.generate(ask(ids=(1,) * 150))
        assert (refused.token_ids, refused.stop) == ((), "length")


async def test_a_thousand_requests_across_twenty_swaps_are_each_served_by_the_version_they_name(
    server: TokenServerFixture, model: Path, tmp_path: Path
) -> None:
    folders = [make_lora(tmp_path / f"v{number}", seed=number) for number in range(1, 21)]
    weights = {0: "", **{number: weights_of(folder) for number, folder in enumerate(folders, 1)}}
    requests = [ask(f"{index // 4}#{index % 4}", seed=index, max_tokens=3) for index in range(1000)]
    server.delay_s = 0.002
    served: list[Completion] = []
    permits = asyncio.Semaphore(50)

    async def play(mine: list[Any]) -> None:
        for request in mine:
            await permits.acquire()
            served.append(await engine.generate(request))
            assert served_by(weights[served[-1].policy_version], request, served[-1])

    async def swap() -> None:
        for number, folder in enumerate(folders, 1):
            while len(served) < number * 50 - 25:  # noqa: ASYNC110  many tasks count up
                await asyncio.sleep(0.002)
            await engine.load(version(number, model, folder))
            for _ in range(50):
                permits.release()

    async with started(server, model) as engine:
        await asyncio.gather(swap(), *(play(requests[start::32]) for start in range(32)))
        await settled(engine)
        assert len(server.adapters) == 1 and len(set(server.loads)) == len(server.loads)
        assert engine.usage("0")["requests"] == 4
    assert len(served) == 1000 and {one.policy_version for one in served} >= set(range(20))
    assert not server.adapters


async def test_what_is_under_way_ends_under_its_version_and_keeps_its_adapter(
    server: TokenServerFixture, model: Path, tmp_path: Path
) -> None:
    first, second = make_lora(tmp_path / "a", seed=1), make_lora(tmp_path / "b", seed=2)
    async with started(server, model) as engine:
        await engine.load(version(1, model, first))
        server.delay_s = 0.3
        slow = asyncio.create_task(engine.generate(ask("slow")))
        await asyncio.sleep(0.1)
        server.delay_s = 0.0
        await engine.load(version(2, model, second))
        assert len(server.adapters) == 2
        request = ask("later", seed=3)
        assert served_by(weights_of(second), request, await engine.generate(request))
        ended = await slow
        assert ended.policy_version == 1 and served_by(weights_of(first), ask("slow"), ended)
        await settled(engine)
        assert list(server.adapters.values()) == [weights_of(second)]
        await engine.load(version(3, model))
        back = await engine.generate(request)
        assert back.policy_version == 3 and served_by("", request, back)


async def test_a_server_that_forgot_the_adapter_gets_it_again_once(
    server: TokenServerFixture, model: Path, tmp_path: Path
) -> None:
    folder = make_lora(tmp_path / "a", seed=1)
    async with started(server, model) as engine:
        await engine.load(version(1, model, folder))
        loads = len(server.loads)
        server.forget()
        requests = [ask(f"{index}#0", seed=index) for index in range(8)]
        for request, completion in zip(requests, await asyncio.gather(*map(engine.generate, requests)), strict=True):
            assert completion.policy_version == 1 and served_by(weights_of(folder), request, completion)
        assert len(server.loads) == loads + 1
        server.delay_s = 0.3
        slow = asyncio.create_task(engine.generate(ask("slow")))
        await asyncio.sleep(0.1)
        await engine.load(version(2, model))
        server.forget()  # while the request is under way, and the base model is served by now
        assert (await slow).policy_version == 2
        server.delay_s = 0.0
        await engine.load(version(3, model, folder))
        server.forget()
        server.lora = False
        with pytest.raises(EngineError, match="LoRA is not enabled"):
            await engine.generate(ask())


async def test_another_base_model_after_a_restart_ends_the_run(server: TokenServerFixture, model: Path) -> None:
    async with started(server, model) as engine:
        server.names = ["other"]
        with pytest.raises(ConfigError, match="no model 'base-model'"):
            await engine.generate(ask())


async def test_a_dead_server_is_revived_and_given_the_adapter(
    server: TokenServerFixture, model: Path, tmp_path: Path
) -> None:
    folder = make_lora(tmp_path / "a", seed=1)
    revived = []

    async def revive() -> None:
        await asyncio.sleep(0.05)
        server.start()
        revived.append(1)

    config = ServerConfig(base_url=server.url, max_retries=0, backoff_s=0.01)
    tokens = TokenServer(Client(config, None, seed=0), model=None, folder=str(model))
    engine = ServedTokenEngine(tokens, context=EngineContext(model=str(model)), tolerance=1e-4, revive=revive)
    await engine.start()
    await engine.load(version(1, model, folder))
    server.stop()
    requests = [ask(f"{index}#0", seed=index) for index in range(6)]
    completions = await asyncio.gather(*map(engine.generate, requests))
    assert len(revived) == 1
    for request, completion in zip(requests, completions, strict=True):
        assert completion.policy_version == 1 and served_by(weights_of(folder), request, completion)
    server.stop()
    await engine.load(version(2, model, make_lora(tmp_path / "b", seed=2)))
    assert len(revived) == 2 and (await engine.generate(ask())).policy_version == 2
    await engine.close()


async def test_without_help_a_dead_server_is_a_fault_of_the_episode(server: TokenServerFixture, model: Path) -> None:
    async with started(server, model, max_retries=1) as engine:
        server.stop()
        with pytest.raises(EngineError, match="after 2 tries"):
            await engine.generate(ask())
        server.start()
        assert (await engine.generate(ask())).policy_version == 0


async def test_bad_adapters_are_refused_before_they_are_sent_and_the_old_version_serves_on(
    server: TokenServerFixture, model: Path, tmp_path: Path
) -> None:
    good = make_lora(tmp_path / "good", seed=1)
    cut = make_lora(tmp_path / "cut", seed=1)
    weights = cut / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    empty = tmp_path / "empty"
    empty.mkdir()
    bad = [
        (make_lora(tmp_path / "rank", seed=1, rank=9), "rank 9, but the engine serves ranks up to 8"),
        (make_lora(tmp_path / "wide", seed=1, columns=7), "another base model or rank"),
        (make_lora(tmp_path / "deep", seed=1, layer="model.layers.9.self_attn.q_proj"), "has no layer model.layers.9"),
        (cut, "damaged"),
        (empty, "no readable adapter_config.json"),
        (tmp_path / "missing", "no readable adapter_config.json"),
    ]
    async with started(server, model) as engine:
        await engine.load(version(1, model, good))
        loads = len(server.loads)
        for folder, told in bad:
            with pytest.raises(EngineError, match=told):
                await engine.load(version(2, model, folder))
        with pytest.raises(EngineError, match="adapters for it, not the model"):
            await engine.load(version(2, tmp_path / "other"))
        assert len(server.loads) == loads
        assert (await engine.generate(ask())).policy_version == 1


async def test_a_server_that_refuses_or_ignores_an_adapter_says_so(
    server: TokenServerFixture, model: Path, tmp_path: Path
) -> None:
    async with started(server, model) as engine:
        server.max_rank = 2
        with pytest.raises(EngineError, match="greater than max_lora_rank 2"):
            await engine.load(version(1, model, make_lora(tmp_path / "a", seed=1)))
        server.max_rank, server.ignores_adapters = 16, True
        with pytest.raises(EngineError, match="ignores the adapter"):
            await engine.load(version(1, model, make_lora(tmp_path / "b", seed=1)))
        await engine.load(version(1, model, make_lora(tmp_path / "c", seed=1, zero=True)))  # changes nothing, rightly
        assert (await engine.generate(ask())).policy_version == 1
        await settled(engine)
        assert len(server.adapters) == 1


async def test_passing_failures_are_repeated_and_limits_are_kept(server: TokenServerFixture, model: Path) -> None:
    async with started(server, model, prices={str(model): {"input": 1.0, "output": 2.0}}) as engine:
        server.faults = [Fault(status=503), Fault(status=429, body=error_body("slow"))]
        await engine.generate(ask("a#0"))
        await engine.generate(ask("a#1"))
        assert engine.usage("a") == {
            "requests": 2,
            "prompt_tokens": 6,
            "cached_tokens": 0,
            "completion_tokens": 8,
            "unmetered": 0,
            "retries": 2,
            "cost_usd": pytest.approx((6 + 2 * 8) / 1e6, abs=1e-6),
        }


def first(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["choices"][0]
    return found


SPOILS = {
    "3 log-probabilities for 4 tokens": lambda document: first(document)["logprobs"]["token_logprobs"].pop(),
    "is not a valid log-probability": lambda document: first(document)["logprobs"].update(token_logprobs=[-9999.0] * 4),
    "NaN is not a JSON number": lambda document: first(document)["logprobs"].update(token_logprobs=[float("nan")] * 4),
    "has no token ids": lambda document: first(document).pop("token_ids"),
    "id 64 is not in the model's vocabulary": lambda document: first(document).update(token_ids=[64] * 4),
    "changed the prompt": lambda document: first(document)["prompt_token_ids"].insert(0, 1),
    "contains an invalid token id": lambda document: first(document).update(token_ids=["a"] * 4),
    "5 token ids came": lambda document: first(document).update(token_ids=[1] * 5),
    "did not end with a stop id": lambda document: first(document).update(finish_reason="stop"),
    "was interrupted": lambda document: first(document).update(finish_reason="abort"),
    "ended by 'tool_calls'": lambda document: first(document).update(finish_reason="tool_calls"),
    "has no log-probabilities": lambda document: first(document).update(logprobs=None),
}


@pytest.mark.parametrize("told", SPOILS)
async def test_a_completion_that_does_not_add_up_is_a_fault(server: TokenServerFixture, model: Path, told: str) -> None:
    async with started(server, model, max_retries=1) as engine:
        server.spoil = SPOILS[told]
        with pytest.raises(EngineError, match=told):
            await engine.generate(ask())
        server.spoil = None
        assert (await engine.generate(ask())).stop == "length"


async def test_ids_of_another_tokenizer_are_refused(server: TokenServerFixture, model: Path) -> None:
    async with started(server, model) as engine:
        for ids in ((), (64,)):
            with pytest.raises(EngineError, match="not in the model's vocabulary of 64"):
                await engine.generate(ask(ids=ids))
    (model / "config.json").unlink()  # then the server judges
    async with started(server, model) as engine:
        with pytest.raises(EngineError, match="out of vocabulary"):
            await engine.generate(ask(ids=(64,)))


async def test_start_and_close_are_idempotent_and_a_probe_reads_no_cache(
    server: TokenServerFixture, model: Path
) -> None:
    engine = engine_on(server, model)
    with pytest.raises(EngineError, match="not started"):
        await engine.generate(ask())
    await asyncio.gather(engine.start(), engine.start())
    asked = len(server.served)
    await engine.start()
    assert len(server.served) == asked
    completion = (await engine.probe(ask()))[0]
    assert completion.logprobs and len(server.bodies[-1]["cache_salt"]) == 32
    assert engine.probe_tolerance == "measured"
    await engine.close()
    await engine.close()
    for late in (engine.generate(ask()), engine.start()):
        with pytest.raises(EngineError, match="closed"):
            await late


async def test_nobody_and_a_wrong_key_are_told_apart(
    server: TokenServerFixture, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "sk-right-0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-0123456789")
    engine = engine_on(server, model)
    with pytest.raises(AuthenticationError, match="rejected the API key"):
        await engine.start()
    await engine.close()
    monkeypatch.setenv("OPENAI_API_KEY", server.key)
    async with started(server, model) as engine:
        await engine.generate(ask())
        server.key = "sk-other-0123456789"
        with pytest.raises(AuthenticationError):
            await engine.generate(ask())
    server.stop()
    engine = engine_on(server, model)
    with pytest.raises(ServiceUnavailableError, match="no server at"):
        await engine.start()
    await engine.close()


async def test_the_base_model_is_named_found_or_asked_for(server: TokenServerFixture, model: Path) -> None:
    for root, options in (("/elsewhere", {}), (str(model), {}), ("/elsewhere", {"model": BASE})):
        server.root = root
        async with started(server, model, **options) as engine:
            await engine.generate(ask())
        assert server.served[-1][0] == BASE
    server.names = ["left", "right"]
    server.root = "/elsewhere"
    for options, told in (({}, "is unknown"), ({"model": "up"}, "no base model 'up'")):
        engine = engine_on(server, model, **options)
        with pytest.raises(ConfigError, match=f"{told}.*left, right"):
            await engine.start()
        await engine.close()


async def test_adapters_are_named_by_the_path_that_the_server_sees(
    server: TokenServerFixture, model: Path, tmp_path: Path
) -> None:
    server.sees = lambda path: tmp_path / Path(path).relative_to("/mnt/here")
    folder = make_lora(tmp_path / "runs" / "v1", seed=1)
    monkey = {str(tmp_path): "/mnt/here", "/": "/mnt/nowhere"}
    config = ServerConfig(base_url=server.url, backoff_s=0.01)
    tokens = TokenServer(Client(config, None, seed=0), model=None, folder=str(model), paths=monkey)
    context = EngineContext(model=str(model), log_dir=tmp_path)
    engine = ServedTokenEngine(tokens, context=context, tolerance=None)
    await engine.start()
    await engine.load(version(1, model, folder))
    assert served_by(weights_of(folder), ask(), await engine.generate(ask()))
    await engine.close()


@pytest.mark.parametrize("seeded", [True, False])
async def test_seeds_are_sent_unless_they_are_off(server: TokenServerFixture, model: Path, seeded: bool) -> None:
    async with started(server, model, **({} if seeded else {"omit": ("seed",)})) as engine:
        await engine.generate(ask(seed=7))
        assert server.bodies[-1].get("seed") == (7 if seeded else None)
    (model / "tokenizer_config.json").write_text("{}")
    config = VllmEngineConfig(url=server.url, **({"seeded": True} if seeded else {}))
    vllm = VllmEngine(config, EngineContext(model=str(model), lora_rank=8, needs_tokens=True))
    await vllm.start()
    try:
        await vllm.generate(ask(seed=7))
        assert server.bodies[-1].get("seed") == (7 if seeded else None)
        await vllm.probe(ask(seed=8))
        assert server.bodies[-1].get("seed") == (8 if seeded else None)
    finally:
        await vllm.close()
