"""What engines are told, what is refused before anything starts, and sets of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_engines import FakeEngine, FakeServer
from fixtures.toy_environment import ToyChatEngine, ToyEnvironment

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError
from finqa_cli.extend import Component, registry
from finqa_cli.rollout.replicas import EngineSet
from finqa_cli.settings import Settings
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring import policies
from finqa_cli.wiring.build import make_engine
from finqa_cli.wiring.policies import check_engine, resolve_for

BASE = PolicyVersion(number=0, model="m")
ADAPTED = PolicyVersion(number=3, model="m", adapter=Path("a"))


def settings(**sections: Any) -> Settings:
    return Settings.model_validate({"engine": {"name": "fake"}, **sections})


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[EngineContext]:
    """What the engines `fake` and `chatty` were told."""
    told: list[EngineContext] = []

    def create(kind: str, name: str, options: object, context: EngineContext) -> object:
        told.append(context)
        return FakeEngine() if name == "fake" else ToyChatEngine()

    monkeypatch.setattr(registry(), "create", create)
    monkeypatch.setattr(registry(), "find", lambda kind, name: Component(kind="engine", name=name, target="x:Y"))
    return told


def test_training_tells_an_engine_what_it_needs(contexts: list[EngineContext], tmp_path: Path) -> None:
    engine = make_engine(
        settings(train={"max_staleness": 2}), BASE, ToyEnvironment(), trains=True, log_dir=tmp_path / "logs"
    )
    assert isinstance(engine, FakeEngine)
    (context,) = contexts
    assert (context.needs_tokens, context.versions, context.log_dir) == (True, 3, tmp_path / "logs")
    assert (context.replica, context.replicas) == (0, 1)


@pytest.mark.parametrize(("policy", "needs"), [(BASE, False), (ADAPTED, True)])
def test_an_evaluation_needs_tokens_for_an_adapter_only(
    contexts: list[EngineContext], policy: PolicyVersion, needs: bool
) -> None:
    make_engine(settings(train={"max_staleness": 2}), policy, ToyEnvironment())
    assert [(context.needs_tokens, context.versions, context.log_dir) for context in contexts] == [(needs, 1, None)]


async def test_replicas_are_numbered_and_serve_the_base_at_first(contexts: list[EngineContext]) -> None:
    engine = make_engine(settings(generation={"engine_replicas": 3}), ADAPTED, ToyEnvironment())
    assert isinstance(engine, EngineSet)
    assert [(context.replica, context.replicas) for context in contexts] == [(0, 3), (1, 3), (2, 3)]


def test_chat_engines_have_no_replicas(contexts: list[EngineContext]) -> None:
    chatty = settings(engine={"name": "chatty"}, generation={"engine_replicas": 2})
    with pytest.raises(ConfigError, match="'chatty' uses messages") as raised:
        make_engine(chatty, BASE, ToyEnvironment())
    assert raised.value.remedy == "--engine-replicas 1"
    assert isinstance(make_engine(settings(engine={"name": "chatty"}), BASE, ToyEnvironment()), ToyChatEngine)


@pytest.mark.parametrize("engine", [FakeServer(), EngineSet([FakeServer(), FakeServer()], serving=BASE)])
def test_an_engine_that_sleeps_cannot_overlap_with_updates(engine: FakeServer | EngineSet) -> None:
    with pytest.raises(ConfigError, match="sleep during updates") as raised:
        check_engine(engine, settings(train={"max_staleness": 1}), BASE, trains=True)
    assert "--max-staleness 0" in raised.value.remedy
    check_engine(engine, settings(train={"max_staleness": 0}), BASE, trains=True)
    check_engine(engine, settings(train={"max_staleness": 1}), BASE, trains=False)
    check_engine(FakeEngine(), settings(train={"max_staleness": 1}), BASE, trains=True)


def test_chat_engines_neither_train_nor_take_adapters() -> None:
    with pytest.raises(ConfigError, match="cannot train"):
        check_engine(ToyChatEngine(), settings(), BASE, trains=True)
    with pytest.raises(ConfigError, match="cannot load the adapter"):
        check_engine(ToyChatEngine(), settings(), ADAPTED, trains=False)
    check_engine(ToyChatEngine(), settings(), BASE, trains=False)


def test_a_remote_engine_gets_the_adapter_of_a_run_and_names_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[PolicyVersion] = []
    monkeypatch.setattr(policies, "resolve", lambda reference: ADAPTED)
    monkeypatch.setattr(policies, "check_on_hub", asked.append)
    assert resolve_for("openai", str(tmp_path)) == ADAPTED
    assert resolve_for("openai", "some/name") == PolicyVersion(number=0, model="some/name")
    asked.clear()
    assert resolve_for("transformers", "some/name") == ADAPTED and asked == [ADAPTED]
