"""How sandboxes and engine come up together: what fails first is said first, and no sandbox is started for nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest
from fixtures.fake_sandboxes import FakeProvider, FakeSandbox

from finqa_cli.contracts import ChatEngine, TokenEngine
from finqa_cli.errors import AuthenticationError, ConfigError, InterruptedRun, SandboxError, ServiceUnavailableError
from finqa_cli.evaluation.evaluate import evaluate
from finqa_cli.evaluation.play_question import play
from finqa_cli.runs.interrupts import Stopper, run
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.run_folder import read_run
from finqa_cli.settings import Settings
from finqa_cli.training.rl import rl_run
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring import build
from finqa_cli.wiring import stage as stages
from finqa_cli.wiring.stage import Stage, stage

REFUSED = AuthenticationError("The key is refused.", remedy="export DAYTONA_API_KEY=...")
NO_POLICY = PolicyVersion(number=0, model="")


class Loading:
    """Takes ten minutes to load, or fails at once."""

    def __init__(self, failure: Exception | None = None) -> None:
        self._failure = failure
        self.closed = False

    async def start(self) -> None:
        if self._failure is not None:
            raise self._failure
        await asyncio.sleep(600)

    async def close(self) -> None:
        self.closed = True


class LargeEngine(Loading, ChatEngine):
    async def respond(self, request: object) -> NoReturn:
        raise AssertionError("it is not ready")


class LargeTokenEngine(Loading, TokenEngine):
    """One that could serve training, if it were ever ready."""

    max_context = 1024

    def seat(self) -> NoReturn:
        raise AssertionError("it is not ready")

    async def generate(self, request: object) -> NoReturn:
        raise AssertionError("it is not ready")

    async def load(self, policy: object) -> NoReturn:
        raise AssertionError("it is not ready")


def settings(home: Path, **pool: object) -> Settings:
    return Settings.model_validate(
        {
            "data": {"home": home},
            "engine": {"name": "scripted"},
            "sandbox": {"name": "local"},
            "pool": {"sandboxes": 20, **pool},
            "eval": {"limit": 3, "attempts": 4},
            "model": {"name": "embedded"},
        }
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeProvider, ChatEngine | None], None]:
    def use(provider: FakeProvider, engine: ChatEngine | None = None) -> None:
        monkeypatch.setattr(build, "make_provider", lambda settings: provider)
        if engine is not None:
            monkeypatch.setattr(stages, "make_engine", lambda *_, **__: engine)

    return use


@pytest.mark.parametrize(
    ("refusal", "failure", "expected"),
    [(REFUSED, None, REFUSED), (None, (bad := ConfigError("There is no such model.")), bad)],
    ids=["provider", "engine"],
)
async def test_what_fails_first_is_raised_at_once(
    home: Path,
    use: Callable[..., None],
    refusal: Exception | None,
    failure: Exception | None,
    expected: Exception,
) -> None:
    provider = FakeProvider(failing=lambda number: refusal, start_s=0.05 if refusal else 600.0)
    engine = LargeEngine(failure)
    use(provider, engine)
    with pytest.raises(type(expected)) as raised:
        async with stage(settings(home), NO_POLICY, run_id="r", reporter=NullReporter()):
            raise AssertionError("neither sandboxes nor engine are ready")
    assert raised.value is expected
    assert engine.closed and provider.closed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_sandboxes_start_has_nothing_to_wait_for(
    home: Path, use: Callable[..., None], number: signal.Signals, tmp_path: Path
) -> None:
    provider = FakeProvider(start_s=600.0)
    use(provider)
    stopper = Stopper(NullReporter())

    async def evaluation() -> None:
        asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), number)
        await evaluate(settings(home), "scripted", tmp_path / "run", reporter=NullReporter(), stopper=stopper)

    with pytest.raises(InterruptedRun) as raised:
        run(evaluation(), stopper)
    assert raised.value.exit_code == 128 + number
    assert provider.closed and provider.asked == 12


@pytest.mark.parametrize(
    ("episodes", "sessions", "sandboxes"), [(1, 1, 1), (12, 1, 12), (12, 5, 3), (500, 1, 20), (0, 1, 1), (None, 1, 20)]
)
async def test_no_more_sandboxes_are_started_than_episodes_need(
    home: Path, use: Callable[..., None], episodes: int | None, sessions: int, sandboxes: int
) -> None:
    provider = FakeProvider(start_s=0.0)
    use(provider)
    count = None if episodes is None else lambda environment: episodes
    told: list[tuple[str, Mapping[str, object]]] = []
    async with stage(
        settings(home, sessions_per_sandbox=sessions),
        NO_POLICY,
        run_id="r",
        reporter=NullReporter(),
        episodes=count,
        on_event=lambda name, fields: told.append((name, fields)),
    ) as parts:
        assert isinstance(parts, Stage)
        await parts.pool.settled()
    assert len(provider.sandboxes) == sandboxes
    states = [fields for name, fields in told if name == "pool"]
    assert states[-1]["idle"] == states[-1]["size"] == sandboxes, "the last state is an event, in a short run too"


async def test_one_visible_episode_has_one_sandbox(home: Path, use: Callable[..., None]) -> None:
    provider = FakeProvider(start_s=0.0, failing=lambda number: REFUSED)
    use(provider)
    with pytest.raises(AuthenticationError):
        await play(
            settings(home),
            NO_POLICY,
            question=None,
            reporter=NullReporter(),
            on_start=lambda _: None,
            on_turn=lambda _: None,
        )
    assert provider.asked == 1


async def test_an_open_breaker_ends_a_command_with_one_clear_error(
    home: Path, use: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sandboxes that are well and refuse every session, while twelve episodes want one."""
    monkeypatch.setattr(FakeSandbox, "url", lambda sandbox: "http://127.0.0.1:9")
    use(FakeProvider(start_s=0.0))
    folder = tmp_path / "run"
    with pytest.raises(ServiceUnavailableError, match="The first error: Cannot connect") as raised:
        await evaluate(settings(home), "scripted", folder, reporter=NullReporter(), stopper=Stopper(NullReporter()))
    assert not isinstance(raised.value, SandboxError) and raised.value.exit_code == 69
    assert read_run(folder)["status"] == "failed"
    events = [event["event"] for event in read_jsonl(folder / "events.jsonl")]
    assert events.count("breaker_open") == 1


async def test_training_that_has_no_sandboxes_says_how_to_go_on(
    home: Path, use: Callable[..., None], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs finqa[train]")
    lost = ServiceUnavailableError("25 of the latest 48 starts failed.", remedy="finqa doctor")
    use(FakeProvider(start_s=0.0, failing=lambda number: lost), LargeTokenEngine())
    folder = tmp_path / "run"
    with pytest.raises(ServiceUnavailableError) as raised:
        await rl_run.train(
            settings(home), folder, resume=False, reporter=NullReporter(), stopper=Stopper(NullReporter())
        )
    assert raised.value.remedy == f"finqa doctor, then finqa train --resume {folder}"
