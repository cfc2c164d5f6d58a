"""Rollout workers ask the engine's servers themselves: versions, swaps, servers that fail, workers that are lost."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.direct_play import DirectWorld, check_versions, facts
from fixtures.lora_files import make_base, make_lora
from fixtures.served_tokens import ask, engine_on, started
from fixtures.token_server import TokenServerFixture, token_server, weights_of

from finqa_cli.backoff import Backoff
from finqa_cli.contracts import EngineContext, EngineLoan, EngineRoute, TokenEngine
from finqa_cli.errors import AuthenticationError, EngineError
from finqa_cli.rollout import replica_choice
from finqa_cli.rollout.replicas import EngineSet
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion
from finqa_plugins.engines._http.http_access import HttpServerClient
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.vllm_engine import VllmEngine
from finqa_ray.workers import lending_engine
from finqa_ray.workers.lending_engine import LendingEngine
from finqa_ray.workers.worker_messages import Offer


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return make_base(tmp_path / "base")


@pytest.fixture
def server(model: Path) -> Iterator[TokenServerFixture]:
    with token_server(str(model)) as running:
        yield running


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending_engine, "LOOK_S", 0.02)
    monkeypatch.setattr(replica_choice, "BACKOFF", Backoff(first_s=0.1, longest_s=0.2))


def adapters(folder: Path, count: int) -> tuple[list[Path], dict[int, str]]:
    """Adapters of versions 1 to `count`, and the weights of each version."""
    made = [make_lora(folder / f"v{number}", seed=number) for number in range(1, count + 1)]
    return made, {0: "", **{number: weights_of(each) for number, each in enumerate(made, 1)}}


def lent(engine: TokenEngine) -> tuple[EngineLoan, EngineRoute]:
    loan = engine.lend()
    assert loan is not None
    (route,) = loan.routes
    assert route is not None
    return loan, route


async def test_results_and_usage_are_those_of_requests_through_the_controller(
    server: TokenServerFixture, model: Path
) -> None:
    prices = {str(model): {"input": 0.31, "output": 1.7}}
    relayed = DirectWorld(engine_on(server, model, prices=prices), lends=False)
    direct = DirectWorld(engine_on(server, model, prices=prices))
    expected, played = await relayed.play(12), await direct.play(12)
    assert facts(played) == facts(expected) and relayed.relayed == 48 and direct.relayed == 0
    assert check_versions(played, {0: ""}) == {0}
    assert {one.metadata["usage"]["requests"] for one in played} == {4} and played[0].metadata["usage"]["cost_usd"] > 0


async def test_no_completion_has_a_wrong_version_across_swaps(
    server: TokenServerFixture, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, weights = adapters(tmp_path, 8)
    world, loaded, requests = DirectWorld(engine_on(server, model)), 0, 0
    server.delay_s = 0.002

    async def generate(client: HttpServerClient, request: GenerateRequest, route: EngineRoute) -> Completion:
        nonlocal requests
        requests += 1
        assert route.policy_version >= loaded, "no request begins under an older version once `load` has returned"
        return await send(client, request, route)

    send = HttpServerClient.generate
    monkeypatch.setattr(HttpServerClient, "generate", generate)

    async def swap() -> None:
        nonlocal loaded
        for number, folder in enumerate(folders, 1):
            while requests < 40 * number:  # noqa: ASYNC110  many tasks count up
                await asyncio.sleep(0.002)
            await world.engine.load(PolicyVersion(number=number, model=str(model), adapter=folder))
            loaded = number

    played = await world.play(100, swap)
    assert check_versions(played, weights) == set(range(9)) and world.relayed == 0 and requests == 400
    assert not server.adapters and len(server.unloads) == len(server.loads), "each version was dropped"


async def test_a_version_stays_on_the_server_until_its_last_request_has_ended(
    server: TokenServerFixture, model: Path, tmp_path: Path
) -> None:
    folders, weights = adapters(tmp_path, 2)
    world = DirectWorld(engine_on(server, model))
    await world.engine.start()
    await world.engine.load(PolicyVersion(number=1, model=str(model), adapter=folders[0]))
    server.delay_s = 0.4

    async def swap() -> None:
        while not world.world.workers._pending:  # noqa: ASYNC110  no event says so
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)
        server.delay_s, first = 0.0, server.loads[-1]
        await world.engine.load(PolicyVersion(number=2, model=str(model), adapter=folders[1]))
        assert set(server.adapters) == {first, server.loads[-1]} and first not in server.unloads

    played = await world.play(2, swap)
    assert check_versions(played, weights) == {1, 2} and world.relayed == 0
    assert [turn.policy_version for turn in played[0].turns] == [1, 2, 2, 2]


async def test_a_server_that_forgot_its_adapters_gets_them_again_without_a_fault(
    server: TokenServerFixture, model: Path, tmp_path: Path
) -> None:
    folders, weights = adapters(tmp_path, 1)
    world = DirectWorld(engine_on(server, model))
    await world.engine.start()
    await world.engine.load(PolicyVersion(number=1, model=str(model), adapter=folders[0]))

    async def forget() -> None:
        while len(server.served) < 20:  # noqa: ASYNC110  a thread counts up
            await asyncio.sleep(0.002)
        server.forget()

    played = await world.play(40, forget)
    assert check_versions(played, weights) == {1} and 0 < world.relayed < 80


async def test_a_replica_that_fails_is_judged_by_the_controller_and_comes_back(
    model: Path, tmp_path: Path, quick_looks: None
) -> None:
    folders, weights = adapters(tmp_path, 2)
    events: list[str] = []
    with token_server(str(model)) as one, token_server(str(model)) as other:
        engines = [engine_on(each, model, max_retries=0) for each in (one, other)]
        serving = PolicyVersion(number=0, model=str(model))
        engine = EngineSet(engines, serving=serving, on_event=lambda name, facts: events.append(name))
        world = DirectWorld(engine)
        assert isinstance(world.engine, LendingEngine)

        async def until(event: str) -> None:
            while event not in events:  # noqa: ASYNC110  no event loop's event says so
                await asyncio.sleep(0.005)

        async def die() -> None:
            while min(len(one.served), len(other.served)) < 20:  # noqa: ASYNC110  threads count up
                await asyncio.sleep(0.002)
            other.stop()
            await until("engine_left_out")
            await world.engine.load(PolicyVersion(number=1, model=str(model), adapter=folders[0]))
            other.start()
            await until("engine_back")
            while None in world.engine._offer.routes:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            before = len(other.served)
            await world.engine.load(PolicyVersion(number=2, model=str(model), adapter=folders[1]))
            while len(other.served) < before + 8:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

        played = await world.play(200, die)
    assert check_versions(played, weights) == {0, 1, 2}
    assert events == ["engine_left_out", "engine_back"] and world.relayed < 100


async def test_attempts_of_a_lost_worker_are_played_again_and_its_loan_ends(
    server: TokenServerFixture, model: Path, tmp_path: Path
) -> None:
    folders, weights = adapters(tmp_path, 2)
    world = DirectWorld(engine_on(server, model))
    await world.engine.start()
    server.delay_s = 0.02

    async def kill() -> None:
        await world.engine.load(PolicyVersion(number=1, model=str(model), adapter=folders[0]))
        before = len(server.served)
        while len(server.served) < before + 20:  # noqa: ASYNC110  a thread counts up
            await asyncio.sleep(0.002)
        world.world.processes.alive()[0].kill()
        await world.engine.load(PolicyVersion(number=2, model=str(model), adapter=folders[1]))
        while len(server.adapters) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    played = await world.play(60, kill)
    assert [one.id for one in played] == [f"e{number}" for number in range(60)]
    assert check_versions(played, weights) <= {0, 1, 2} and not any(one.retries for one in played)
    assert len(world.world.heard("worker_lost")) == 1


@pytest.mark.parametrize(("node", "relayed"), [("10.0.0.1", 0), ("10.0.0.2", 12)])
async def test_a_loopback_address_is_for_workers_of_that_machine_only(
    server: TokenServerFixture, model: Path, node: str, relayed: int
) -> None:
    world = DirectWorld(engine_on(server, model), node=node)  # the controller is on 10.0.0.1
    check_versions(await world.play(3), {0: ""})
    assert world.relayed == relayed


async def test_addresses_that_lead_to_a_server(server: TokenServerFixture, model: Path) -> None:
    async with started(server, model) as engine:
        loan, route = lent(engine)

        def seen(node: str, engine_node: str = "", url: str = "") -> bool:
            access: Any = route.server
            if url:
                access = replace(access, connection=access.connection.model_copy(update={"base_url": url}))
            sent = replace(route, node=engine_node, server=access)
            return Offer(number=1, routes=(sent,)).seen_from(node, "10.0.0.1").routes != (None,)

        assert seen("10.0.0.1") and not seen("10.0.0.2") and seen("127.0.0.4")
        assert seen("10.0.0.2", "10.0.0.2") and not seen("10.0.0.1", "10.0.0.2")
        assert seen("10.0.0.2", url="http://10.0.0.7:8000/v1") and not seen("10.0.0.2", url="http://localhost:1/v1")
        loan.end()


async def test_a_key_that_workers_find_themselves_is_not_sent(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "sk-of-the-server-1")
    with token_server(str(model), key="sk-of-the-server-1") as server:
        async with started(server, model, api_key_env="SERVER_KEY") as engine:
            loan, route = lent(engine)
            sent = pickle.dumps(route)
            assert b"sk-of-the-server-1" not in sent
            client = pickle.loads(sent).server.connect(2)
            assert (await client.generate(ask(), route)).policy_version == 0
            await client.close()
            monkeypatch.delenv("SERVER_KEY")
            with pytest.raises(AuthenticationError, match="SERVER_KEY is not set"):
                pickle.loads(sent).server.connect(2)
            loan.end()
        monkeypatch.setenv("SERVER_KEY", "sk-of-the-server-1")
        world = DirectWorld(engine_on(server, model, api_key_env="SERVER_KEY"))
        monkeypatch.setattr("finqa_plugins.engines._http.http_access.find_key", _no_key)
        check_versions(await world.play(3), {0: ""})
        assert world.relayed == 12, "without the key requests pass through the controller"


def _no_key(config: object) -> None:
    raise AuthenticationError("there is no key here")


async def test_the_workers_share_the_places_and_limits_per_minute_are_counted_in_one_process(
    server: TokenServerFixture, model: Path
) -> None:
    async with started(server, model, max_concurrent=50) as engine:
        _, route = lent(engine)
        shares = [_places(route, processes) for processes in (1, 3, 60)]
        assert shares == [50, 16, 1]
    async with started(server, model, requests_per_minute=6000) as limited:
        assert limited.lend() is None


def _places(route: EngineRoute, processes: int) -> int:
    client: Any = route.server.connect(processes)
    places: int = client._server.client.config.max_concurrent
    return places


async def test_servers_that_sleep_are_lent_to_nobody(server: TokenServerFixture, model: Path) -> None:
    server.development = True
    (model / "tokenizer_config.json").write_text("{}")
    context = EngineContext(model=str(model), lora_rank=8, needs_tokens=True, sleep=True)
    engine = LendingEngine(VllmEngine(VllmEngineConfig(url=server.url), context), 1)
    offers: list[Offer] = []

    async def send(offer: Offer) -> None:
        offers.append(offer)
        if not offer.routes and offer.number:
            assert "/sleep" not in server.controls, "they stop before the server sleeps"

    await engine.start()
    try:
        await engine.join((0, 1), send)
        await engine.sleep()
        assert server.controls[-1] == "/sleep"
        with pytest.raises(EngineError, match="sleeps"):
            await engine.generate(ask())
        await engine.wake()
        assert [bool(offer.routes) for offer in offers] == [True, False, True]
        assert [offer.number for offer in offers] == [1, 2, 3]
    finally:
        await engine.close()


async def test_a_worker_that_does_not_take_an_offer_delays_a_swap_for_a_moment_only(
    server: TokenServerFixture, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending_engine, "OFFER_S", 0.05)
    folders, _ = adapters(tmp_path, 1)
    engine = LendingEngine(engine_on(server, model), 2)
    taken: list[Sequence[EngineRoute | None]] = []
    silent = asyncio.Event()

    async def send(offer: Offer) -> None:
        taken.append(offer.routes)

    async def hang(offer: Offer) -> None:
        await silent.wait() if offer.number > 1 else None

    await engine.start()
    try:
        await engine.join((0, 1), send)
        await engine.join((1, 1), hang)
        await engine.load(PolicyVersion(number=1, model=str(model), adapter=folders[0]))
        assert len(taken) == 2 and list(engine._lent) == [1, 2], "the silent worker may use the first version"
        engine.unused((0, 1), 1)
        assert list(engine._lent) == [1, 2]
        engine.leave((1, 1))
        assert list(engine._lent) == [2]
    finally:
        await engine.close()
