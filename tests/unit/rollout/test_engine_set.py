"""Publishing to replicas together, and what becomes of replicas that fail; in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from fixtures.fake_engines import GONE, FakeEngine, FakeServer
from fixtures.virtual_time import run_virtually

from finqa_cli.contracts import TokenEngine
from finqa_cli.errors import (
    AuthenticationError,
    ConfigError,
    EngineError,
    ServiceUnavailableError,
    UnreachableEngineError,
)
from finqa_cli.rollout.replica_choice import BACKOFF, FAILURES
from finqa_cli.rollout.replicas import EngineSet
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion, Sampling

BASE = PolicyVersion(number=0, model="m")
NEXT = PolicyVersion(number=1, model="m")
FRESH = itertools.count()
AWAY = UnreachableEngineError("Nothing answers.", remedy="start it again")
BAD = EngineError("The adapter has rank 64.", remedy="--lora-rank 16")


def ask(key: str, opening: int = 0) -> GenerateRequest:
    return GenerateRequest(key=key, token_ids=(opening,) * 48, sampling=Sampling())


def made_of(*engines: FakeEngine) -> EngineSet:
    return EngineSet(engines, serving=BASE)


async def ask_all(engines: EngineSet, count: int) -> list[Completion | BaseException]:
    """Episodes that were never seen before, each with an opening of its own."""
    asked = (engines.generate(ask(f"{number}#0", number)) for number in itertools.islice(FRESH, count))
    return await asyncio.gather(*asked, return_exceptions=True)


def versions(answers: Sequence[Completion | BaseException]) -> list[int]:
    return [answer.policy_version for answer in answers if isinstance(answer, Completion)]


def test_it_is_every_kind_of_engine_that_its_members_are() -> None:
    both = made_of(FakeServer(), FakeServer())
    assert isinstance(both, TokenEngine) and both.sleeps and both.probe_tolerance == 1e-5
    plain = made_of(FakeEngine(), FakeEngine())
    assert not plain.sleeps and plain.probe_tolerance is None
    small = FakeEngine()
    small.max_context = 8
    assert made_of(FakeEngine(), small).max_context == 8


def test_no_replica_serves_a_version_before_all_have_it_and_requests_under_way_go_on() -> None:
    async def scene() -> None:
        quick, slow = FakeEngine(load_s=1.0, seconds=5.0), FakeEngine(load_s=60.0, seconds=5.0)
        engines = made_of(quick, slow)
        under_way = asyncio.create_task(ask_all(engines, 4))
        await asyncio.sleep(1.0)
        loading = asyncio.create_task(engines.load(NEXT))
        await asyncio.sleep(2.0)
        assert quick.loaded == [1] and slow.loaded == []
        late = asyncio.create_task(ask_all(engines, 4))
        assert versions(await under_way) == [0, 0, 0, 0]
        await asyncio.sleep(50.0)
        assert not late.done() and not loading.done()
        await loading
        assert versions(await late) == [1, 1, 1, 1]
        assert quick.served[:2] and slow.served[:2], "both work"

    run_virtually(scene())


@pytest.mark.parametrize("queues", [False, True])
def test_when_one_replica_refuses_a_version_nobody_serves_it(queues: bool) -> None:
    """With `queues` a replica that has the version already answers old requests under it: they are asked again."""

    async def scene() -> None:
        fine, refusing = FakeEngine(seconds=5.0, queues=queues), FakeEngine(seconds=5.0, load_s=10.0)
        refusing.refuses = {1: BAD}
        engines = made_of(fine, refusing)
        under_way = asyncio.create_task(ask_all(engines, 4))
        await asyncio.sleep(1.0)
        with pytest.raises(EngineError) as raised:
            await engines.load(NEXT)
        assert raised.value is BAD
        assert fine.loaded == [1, 0]
        assert versions(await under_way) == [0] * 4
        assert versions(await ask_all(engines, 6)) == [0] * 6

    run_virtually(scene())


def test_an_answer_under_the_new_version_is_kept_back_until_all_have_it() -> None:
    async def scene() -> None:
        quick, slow = FakeEngine(seconds=5.0, queues=True), FakeEngine(seconds=5.0, load_s=60.0)
        engines = made_of(quick, slow)
        answer = asyncio.create_task(engines.generate(ask("a#0")))
        await asyncio.sleep(1.0)
        loading = asyncio.create_task(engines.load(NEXT))
        await asyncio.sleep(30.0)
        assert quick.served == [("a#0", 1)] and not answer.done()
        await loading
        assert (await answer).policy_version == 1

    run_virtually(scene())


def test_a_replica_that_cannot_go_back_is_left_out_until_it_can() -> None:
    async def scene() -> None:
        stuck, refusing = FakeEngine(), FakeEngine()
        refusing.refuses, stuck.refuses = {1: BAD}, {0: GONE}
        engines = made_of(stuck, refusing)
        with pytest.raises(EngineError) as raised:
            await engines.load(NEXT)
        assert raised.value is BAD
        assert versions(await ask_all(engines, 4)) == [0] * 4 and not stuck.served
        stuck.refuses = {}
        await asyncio.sleep(BACKOFF.first_s)
        assert versions(await ask_all(engines, 4)) == [0] * 4
        assert stuck.loaded == [1, 0] and stuck.served, "it went back before it was used"

    run_virtually(scene())


def test_a_load_that_is_cancelled_leaves_no_replica_in_doubt() -> None:
    async def scene() -> None:
        quick, slow = FakeEngine(), FakeEngine(load_s=60.0)
        engines = made_of(quick, slow)
        loading = asyncio.create_task(engines.load(NEXT))
        await asyncio.sleep(5.0)
        loading.cancel()
        await asyncio.wait([loading])
        assert versions(await ask_all(engines, 4)) == [0] * 4
        assert quick.loaded == [1, 0] and slow.loaded == [0]

    run_virtually(scene())


def test_a_replica_that_dies_costs_no_episode_and_comes_back() -> None:
    async def scene() -> None:
        dying, other = FakeEngine(), FakeEngine()
        engines = made_of(dying, other)
        await ask_all(engines, 8)
        assert dying.served and other.served
        dying.trouble = GONE
        for _ in range(FAILURES):
            assert versions(await ask_all(engines, 8)) == [0] * 8, "every request went to the other one"
        answered = len(other.served)
        assert versions(await ask_all(engines, 8)) == [0] * 8
        assert len(other.served) == answered + 8
        await engines.load(NEXT)  # it takes part, though no requests go to it
        dying.trouble = None
        served = len(dying.served)
        await asyncio.sleep(BACKOFF.first_s)
        assert versions([await engines.generate(ask("new#0", 99))]) == [1]
        assert len(dying.served) == served + 1, "one request tries it"

    run_virtually(scene())


def test_a_replica_that_missed_a_version_loads_it_before_it_is_tried() -> None:
    async def scene() -> None:
        away, other = FakeEngine(), FakeEngine()
        engines = made_of(away, other)
        away.trouble, away.refuses = ServiceUnavailableError("no server is there"), {1: GONE}
        await ask_all(engines, 2)
        await engines.load(NEXT)
        assert away.loaded == []
        away.trouble, away.refuses = None, {}
        await asyncio.sleep(BACKOFF.first_s)
        assert versions(await ask_all(engines, 2)) == [1, 1]
        assert away.loaded == [1] and away.served

    run_virtually(scene())


class Reporting(FakeEngine):
    """Says when it serves again."""

    reports_return = True

    def __init__(self) -> None:
        super().__init__()
        self.back = asyncio.Event()

    async def returned(self) -> None:
        await self.back.wait()


def test_a_replica_that_says_when_it_is_back_serves_the_newest_version_at_once() -> None:
    async def scene() -> None:
        away, other = Reporting(), FakeEngine()
        events: list[tuple[str, object]] = []
        engines = EngineSet(
            (away, other), serving=BASE, on_event=lambda name, facts: events.append((name, facts.get("version")))
        )
        away.trouble, away.refuses = AWAY, {1: AWAY}
        await ask_all(engines, 2)
        await engines.load(NEXT)
        for _ in range(4):  # the pauses between trials grow beyond a minute
            await asyncio.sleep(BACKOFF.longest_s)
            await ask_all(engines, 2)
        away.trouble, away.refuses = None, {}
        began = asyncio.get_running_loop().time()
        away.back.set()
        await asyncio.sleep(0.1)
        assert events[-1] == ("engine_back", 1) and away.loaded == [1]
        assert versions(await ask_all(engines, 2)) == [1, 1] and away.served
        assert asyncio.get_running_loop().time() < began + 2  # a request takes a second
        await engines.close()

    run_virtually(scene())


def test_many_requests_that_fail_together_are_one_failure() -> None:
    async def scene() -> None:
        hiccup, other = FakeEngine(), FakeEngine()
        engines = made_of(hiccup, other)
        hiccup.trouble = GONE
        assert versions(await ask_all(engines, 50)) == [0] * 50
        hiccup.trouble = None
        await ask_all(engines, 50)
        assert hiccup.served

    run_virtually(scene())


def test_faults_are_the_episodes_while_a_replica_is_left_and_the_runs_when_none_is() -> None:
    async def scene() -> None:
        one, two = FakeEngine(), FakeEngine()
        engines = made_of(one, two)
        one.trouble = two.trouble = GONE
        for _ in range(FAILURES - 1):
            with pytest.raises(EngineError):
                await engines.generate(ask("a#0"))
        for _ in range(2):
            with pytest.raises(ServiceUnavailableError, match=r"None of the 2 .*The server is gone") as raised:
                await engines.generate(ask("a#0"))
            assert not isinstance(raised.value, EngineError) and raised.value.remedy == "start it again"

    run_virtually(scene())


def test_one_that_cannot_be_reached_faults_an_episode_only() -> None:
    async def scene() -> None:
        one, two = FakeEngine(), FakeEngine()
        engines = made_of(one, two)
        one.trouble = two.trouble = GONE
        await ask_all(engines, 1)
        one.trouble = ServiceUnavailableError("no server is there")
        (error,) = await ask_all(engines, 1)
        assert isinstance(error, EngineError)

    run_virtually(scene())


def test_what_would_fail_everywhere_is_raised_as_it_is() -> None:
    async def scene() -> None:
        one, two = FakeEngine(), FakeEngine()
        one.trouble = AuthenticationError("The key is refused.")
        with pytest.raises(AuthenticationError):
            await made_of(one, two).generate(ask("a#0"))
        assert not two.served

    run_virtually(scene())


def test_lockstep_is_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        run_virtually(made_of(FakeEngine(), FakeEngine(lockstep=True)).start())
    assert "--engine-replicas 1" in raised.value.remedy


def test_what_fails_to_start_is_raised_at_once_and_all_are_closed() -> None:
    async def scene() -> None:
        broken, slow = FakeEngine(), FakeEngine(seconds=600.0)
        wrong = ConfigError("There is no such model.")
        broken.fails_to = lambda what: wrong
        engines = made_of(broken, slow)
        began = asyncio.get_running_loop().time()
        with pytest.raises(ConfigError) as raised:
            await engines.start()
        assert raised.value is wrong and asyncio.get_running_loop().time() - began < 2.0
        with pytest.raises(ConfigError):
            await engines.close()
        assert slow.closed and not slow.started

    run_virtually(scene())


def test_all_sleep_wake_and_are_probed_and_what_they_used_is_added() -> None:
    async def scene() -> None:
        servers = [FakeServer(), FakeServer()]
        engines = made_of(*servers)
        await engines.sleep()
        assert all(server.asleep for server in servers)
        await engines.wake()
        assert not any(server.asleep for server in servers)
        await engines.generate(ask("a#0"))
        servers[0].trouble = GONE
        await engines.generate(ask("a#1"))
        assert engines.usage("a") == {"requests": 2, "cost_usd": None}
        with pytest.raises(EngineError):
            await engines.probe(ask("probe#0"))
        servers[0].trouble = None
        assert len(await engines.probe(ask("probe#0"))) == 2

    run_virtually(scene())


def test_a_replica_that_is_away_at_a_load_is_left_out_and_serves_again_under_the_current_version_only() -> None:
    events: list[tuple[str, object]] = []

    async def scene() -> None:
        away, other = FakeEngine(), FakeEngine()
        engines = EngineSet(
            [away, other], serving=BASE, on_event=lambda name, facts: events.append((name, facts["replica"]))
        )
        away.refuses = {1: AWAY, 2: AWAY}
        await engines.load(NEXT)
        assert events == [("engine_left_out", 0)]
        assert versions(await ask_all(engines, 8)) == [1] * 8 and not away.served
        with pytest.raises(ConfigError, match="FakeEngine cannot be probed"):
            await engines.probe(ask("probe#0"))
        await engines.load(PolicyVersion(number=2, model="m"))
        await asyncio.sleep(0.1)
        assert away.loaded == [] and events == [("engine_left_out", 0)]
        away.refuses = {}
        await engines.load(PolicyVersion(number=3, model="m"))
        await asyncio.sleep(0.1)
        assert away.loaded == [3], "it is asked at each load, beside the others"
        assert versions(await ask_all(engines, 8)) == [3] * 8
        assert away.served and {version for _, version in away.served} == {3}
        assert events == [("engine_left_out", 0), ("engine_back", 0)]
        await engines.close()

    run_virtually(scene())


def test_a_replica_that_hangs_while_it_is_left_out_holds_up_no_load() -> None:
    async def scene() -> None:
        hanging, other = FakeEngine(), FakeEngine()
        engines = made_of(hanging, other)
        hanging.refuses = {1: AWAY}
        await engines.load(NEXT)
        hanging.load_s = 600.0
        clock = asyncio.get_running_loop().time
        began = clock()
        for number in (2, 3):
            await engines.load(PolicyVersion(number=number, model="m"))
        assert versions(await ask_all(engines, 4)) == [3] * 4 and clock() - began < 10.0
        await asyncio.sleep(2000.0)
        assert hanging.policy.number == 3
        assert versions(await ask_all(engines, 4)) == [3] * 4 and hanging.served
        await engines.close()

    run_virtually(scene())


def test_when_all_are_away_at_a_load_the_run_is_told_and_the_old_version_is_served_on() -> None:
    async def scene() -> None:
        one, two = FakeEngine(), FakeEngine()
        engines = made_of(one, two)
        one.refuses = two.refuses = {1: AWAY}
        with pytest.raises(UnreachableEngineError, match=r"None of the 2 .*Nothing answers") as raised:
            await engines.load(NEXT)
        assert raised.value.remedy == "start it again" and not isinstance(raised.value, EngineError)
        two.refuses = {}
        await engines.load(NEXT)
        assert versions(await ask_all(engines, 4)) == [1] * 4 and not one.served
        gone = ServiceUnavailableError("It failed more often than allowed.")
        two.refuses = one.refuses = {2: gone}
        with pytest.raises(ServiceUnavailableError) as final:
            await engines.load(PolicyVersion(number=2, model="m"))
        assert not isinstance(final.value, UnreachableEngineError), "nothing to wait for"
        await engines.close()

    run_virtually(scene())


def test_a_version_that_one_refuses_while_another_is_away_is_served_by_neither() -> None:
    async def scene() -> None:
        away, refusing, fine = FakeEngine(), FakeEngine(), FakeEngine()
        away.refuses, refusing.refuses = {1: AWAY}, {1: BAD}
        engines = made_of(away, refusing, fine)
        with pytest.raises(EngineError) as raised:
            await engines.load(NEXT)
        assert raised.value is BAD and fine.loaded == [1, 0]
        assert versions(await ask_all(engines, 6)) == [0] * 6
        await engines.close()

    run_virtually(scene())


def test_a_replica_that_is_away_when_it_is_probed_is_left_out() -> None:
    async def scene() -> None:
        servers = [FakeServer(), FakeServer()]
        engines = made_of(*servers)
        servers[0].trouble = AWAY
        assert set(await engines.probe(ask("probe#0"))) == {1}
        servers[1].trouble = AWAY
        with pytest.raises(UnreachableEngineError):
            await engines.probe(ask("probe#0"))
        await engines.close()

    run_virtually(scene())


def test_a_replica_that_is_away_neither_sleeps_nor_wakes_and_ends_nothing() -> None:
    async def scene() -> None:
        servers = [FakeServer(), FakeServer(), FakeServer()]
        engines = made_of(*servers)
        servers[0].no_sleep = AWAY
        await engines.sleep()
        assert [server.asleep for server in servers] == [False, True, True]
        servers[1].no_sleep = AWAY
        await engines.wake()
        assert [server.asleep for server in servers] == [False, True, False]
        assert [server.turns for server in servers] == [1, 2, 2], "one that is left out is not asked again"
        servers[1].no_sleep = None
        await asyncio.sleep(BACKOFF.first_s)
        await engines.load(NEXT)
        await asyncio.sleep(1.0)
        assert not servers[1].asleep and servers[1].loaded == [1], "it wakes before it loads what it missed"
        await engines.close()

    run_virtually(scene())


def test_a_replica_that_fails_to_sleep_or_that_is_the_last_one_away_ends_the_run() -> None:
    async def scene() -> None:
        servers = [FakeServer(), FakeServer()]
        engines = made_of(*servers)
        servers[0].no_sleep = GONE
        with pytest.raises(EngineError, match="The server is gone"):
            await engines.sleep()
        assert servers[1].asleep
        servers[0].no_sleep = servers[1].no_sleep = AWAY
        with pytest.raises(UnreachableEngineError, match="None of the 2"):
            await engines.wake()
        await engines.close()

    run_virtually(scene())
