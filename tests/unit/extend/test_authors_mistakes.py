"""Mistakes of plugin authors: each names plugin, file and line, and none is called a bug in finqa."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import reduce
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import indent

import pytest

from finqa_cli.contracts import Environment, EnvironmentContext, RewardRequest, Sandbox, Session
from finqa_cli.errors import ConfigError, EnvironmentFault, FinqaError, PluginError
from finqa_cli.extend import Registry
from finqa_cli.extend.plugin_calls import guarded
from finqa_cli.rollout.attempts import Attempt, Player, Seat
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.measures import measured
from finqa_cli.rollout.pool import Pool
from finqa_cli.types import DataInfo, Group, Rewards, Sampling, Status, Task, Trajectory

SOUND = """
from finqa_cli.contracts import *
from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import *

class Stock(Session):
    def prompt(self):
        return Prompt(messages=(Message(role="user", content="How many bolts?"),), tools=())
    async def step(self, call):
        return Observation(text="7", done=True)
    async def grade(self):
        return Rewards(total=1.0)

class Inventory(Environment):
    def __init__(self, config, context): ...
    def data(self):
        return DataInfo(name="inventory", digest="sha256:0")
    def splits(self):
        return ("train",)
    def tasks(self, split):
        return [Task(id="bolts", prompt="How many bolts?", split=split, cluster="bolts")]
    async def open(self, task, *, seed, sandbox):
        return SESSION()

class Answers(ChatEngine):
    def __init__(self, config, context): ...
    async def start(self): ...
    async def close(self): ...
    async def respond(self, request):
        return AssistantTurn(text="", tool_call=ToolCall(name="count", arguments={}))

class Mean(Optimizer):
    def __init__(self, config): ...
    def credit(self, group):
        return Credit(advantages=(None,) * len(group.trajectories))
    def loss(self): ...

class Judge(Reward):
    def __init__(self, config): ...
    def score(self, request):
        return Rewards(total=1.0)

class Notes(Tracker):
    def __init__(self, config, context): ...

class Machines(SandboxProvider):
    def __init__(self, config, context): ...
    async def start(self, spec, labels): ...
    async def list(self, labels):
        return []
    async def reap(self, sandbox_id): ...
    async def close(self): ...

class Mistaken(<base>):
<body>

SESSION = Mistaken if "<base>" == "Stock" else Stock

@hookimpl
def register_components():
    classes = {"environment": Inventory, "engine": Answers, "optimizer": Mean, "reward": Judge, "tracker": Notes,
               "sandbox": Machines}
    names = {kind: "Mistaken" if each is <base> else each.__name__ for kind, each in classes.items()}
    return [Component(kind=kind, name="acme-" + kind, target=f"<module>:{name}") for kind, name in names.items()]
"""

RAISES = "raise KeyError('bolts')  # the mistake"


def method(signature: str, body: str, *, plain: bool = False) -> str:
    kind = "def" if plain else "async def"
    return f"{kind} {signature}:  {'' if '# the mistake' in body else '# the mistake'}\n    {body}"


def returning(signature: str, *values: str, plain: bool = False) -> list[str]:
    return [method(signature, f"return {value}", plain=plain) for value in values]


STEPS = [
    *returning("step(self, call)", "None", "'7'", "Observation(text=7)", "{'text': '7'}"),
    method("step(self, call)", RAISES),
    method("step(self)", "return Observation(text='7')"),
    method("step(self, call)", "raise SystemError  # the mistake"),
    method("begin_turn(self, turn)", RAISES),
    method("begin_turn(self)", "..."),
]
GRADES = [
    *returning("grade(self)", "None", "1.0", "Rewards(total=None)", "Rewards(total=float('nan'))"),
    *returning("grade(self)", "Rewards(total='1')", "Rewards(total=1.0, components={'a': None})"),
    method("grade(self)", RAISES),
    method("grade(self, task)", "return Rewards(total=1.0)"),
]
PROMPTS = [
    *returning("prompt(self)", "'How many?'", "None", "Prompt(messages=(), tools=())", plain=True),
    *returning("prompt(self)", "Prompt(messages=('How many?',), tools=())", plain=True),
    method("prompt(self)", RAISES, plain=True),
]
OPENS = [
    *returning("open(self, task, *, seed, sandbox)", "None", "object()", "'session'"),
    method("open(self, task, *, seed, sandbox)", RAISES),
    method("open(self, task)", "return Stock()"),
]
IN_EPISODES = [
    *[("Stock", body) for body in (*STEPS, *GRADES, *PROMPTS)],
    *[("Inventory", body) for body in OPENS],
    *[("Answers", body) for body in returning("respond(self, request)", "None", "'7'", "{}")],
    ("Answers", method("respond(self, request)", RAISES)),
    ("Answers", method("respond(self)", "return AssistantTurn(text='7')")),
    ("Answers", method("respond(self, request)", "return AssistantTurn(text='')", plain=True)),
]
BEFORE = [
    ("Inventory", method("__init__(self)", "...", plain=True)),
    ("Inventory", method("__init__(self, config, context)", RAISES, plain=True)),
    *[("Inventory", body) for body in returning("tasks(self, split)", "None", "'bolts'", "[{'id': 1}]", plain=True)],
    ("Inventory", method("tasks(self, split)", RAISES, plain=True)),
    ("Inventory", method("tasks(self)", "return []", plain=True)),
    *[("Inventory", body) for body in returning("splits(self)", "None", "'train'", "[1]", plain=True)],
    *[("Inventory", body) for body in returning("data(self)", "None", "'inventory'", plain=True)],
    ("Mean", method("__init__(self)", "...", plain=True)),
    *[("Mean", body) for body in returning("credit(self, group)", "None", "[1.0]", "1.0", plain=True)],
    ("Mean", method("credit(self, group)", RAISES, plain=True)),
    ("Mean", method("credit(self)", "...", plain=True)),
    *[("Judge", body) for body in returning("score(self, request)", "None", "1.0", "Rewards(total='1')", plain=True)],
    ("Judge", method("score(self, request)", RAISES, plain=True)),
    ("Judge", method("score(self)", "...", plain=True)),
    ("Notes", method("__init__(self)", "...", plain=True)),
    ("Notes", method("on_metrics(self, metrics)", RAISES, plain=True)),
    *[("Machines", body) for body in returning("start(self, spec, labels)", "None", "'machine'")],
    ("Machines", method("start(self, spec, labels)", RAISES)),
    *[("Machines", body) for body in returning("list(self, labels)", "None", "['machine']")],
]


Make = Callable[[str, str], tuple[Registry, Path]]


@pytest.fixture
def registry_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a registry of a plugin in which one method of one class is mistaken, and returns it with the file."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(base: str, body: str) -> tuple[Registry, Path]:
        name = f"acme_{secrets.token_hex(8)}"
        file = tmp_path / f"{name}.py"
        parts = {"<base>": base, "<body>": indent(body, "    "), "<module>": name}
        file.write_text(reduce(lambda text, part: text.replace(*part), parts.items(), SOUND))
        registry = Registry([EntryPoint(name="acme", value=name, group="finqa")])
        assert registry.reports[0].error == ""
        return registry, file

    return make


def check_message(message: str, file: Path) -> None:
    lines = file.read_text().splitlines()
    number = 1 + next(number for number, line in enumerate(lines) if "# the mistake" in line)
    assert "(plugin 'acme' of " in message and "'acme-" in message, message
    assert f"({file}:{number})" in message, message
    assert "bug in finqa" not in message


@pytest.mark.parametrize(("base", "body"), IN_EPISODES)
async def test_a_mistake_in_an_episode_is_a_fault_of_that_episode(registry_of: Make, base: str, body: str) -> None:
    registry, file = registry_of(base, body)
    environment = registry.create("environment", "acme-environment", {}, EnvironmentContext(snapshot=None))
    engine = registry.create("engine", "acme-engine", {}, None)
    (task,) = environment.tasks("train")
    player = Player(environment, Pool(), engine, None, limits=Limits(), sampling=Sampling(), max_retries=0)
    trajectory = await player.play(Attempt(id="t", task=task, member=0, seed=0), Seat(nullcontext))
    assert trajectory.status is (Status.ENGINE_ERROR if base == "Answers" else Status.ENVIRONMENT_ERROR)
    assert trajectory.rewards is None
    check_message(trajectory.error, file)


@pytest.mark.parametrize(("base", "body"), BEFORE)
async def test_a_mistake_elsewhere_is_an_error_that_names_it(registry_of: Make, base: str, body: str) -> None:
    registry, file = registry_of(base, body)
    with pytest.raises(FinqaError) as caught:
        await use(registry)
    check_message(caught.value.message, file)
    assert str(file) in caught.value.remedy


async def use(registry: Registry) -> None:
    """Calls each component of the plugin once."""
    environment = registry.create("environment", "acme-environment", {}, EnvironmentContext(snapshot=None))
    tasks = [task for split in environment.splits() for task in environment.tasks(split)]
    assert environment.data().name == "inventory"
    member = Trajectory(id="t", task=tasks[0], member=0, seed=0, status=Status.COMPLETED, turns=())
    registry.create("optimizer", "acme-optimizer", {}).credit(Group(task=tasks[0], trajectories=(member,)))
    registry.create("reward", "acme-reward", {}).score(RewardRequest(task=tasks[0], solution="7", truth="7"))
    registry.create("tracker", "acme-tracker", {}, None).on_metrics({})
    provider = registry.create("sandbox", "acme-sandbox", {}, None)
    await provider.list({})
    await provider.start(None, {})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (method("measure(self, trajectories)", RAISES, plain=True), "KeyError: 'bolts'"),
        *[(body, "measure") for body in returning("measure(self, trajectories)", "None", "[1]", plain=True)],
        (method("measure(self, trajectories)", "return {'rate': float('nan')}", plain=True), "not JSON compliant"),
    ],
)
def test_figures_of_an_environment_that_fail_are_left_out(
    registry_of: Make, body: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    registry, _ = registry_of("Inventory", body)
    environment = registry.create("environment", "acme-environment", {}, EnvironmentContext(snapshot=None))
    assert measured(environment, []) == {}
    assert reason in capsys.readouterr().out


async def test_a_session_that_cannot_be_closed_costs_no_episode(registry_of: Make) -> None:
    registry, _ = registry_of("Stock", method("close(self)", RAISES))
    environment = registry.create("environment", "acme-environment", {}, EnvironmentContext(snapshot=None))
    engine = registry.create("engine", "acme-engine", {}, None)
    player = Player(environment, Pool(), engine, None, limits=Limits(), sampling=Sampling(), max_retries=0)
    attempt = Attempt(id="t", task=environment.tasks("train")[0], member=0, seed=0)
    assert (await player.play(attempt, Seat(nullcontext))).reward == 1.0


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("splits = ('train',)", "its splits is a tuple"),
        ("splits = None", "its splits is None"),
        ("tasks = property(lambda self: [])", "its tasks is a property"),
        ("def __init__(self, *_): self.data = 'inventory'", "its data is a str"),
    ],
)
def test_a_method_that_is_none_is_an_error_before_anything_is_called(registry_of: Make, body: str, what: str) -> None:
    registry, file = registry_of("Inventory", body)
    with pytest.raises(ConfigError) as caught:
        registry.create("environment", "acme-environment", {}, EnvironmentContext(snapshot=None))
    assert f"{what}, but must be a method ({file}:" in caught.value.message
    assert "plugin 'acme'" in caught.value.message


async def test_a_session_whose_method_is_none_is_a_fault(registry_of: Make) -> None:
    registry, file = registry_of("Stock", "step = 7")
    environment = registry.create("environment", "acme-environment", {}, EnvironmentContext(snapshot=None))
    (task,) = environment.tasks("train")
    with pytest.raises(EnvironmentFault, match=rf"its step is a int.*{file.name}:"):
        await environment.open(task, seed=0, sandbox=None)


async def test_a_slow_method_that_stops_all_episodes_is_named_once(
    registry_of: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("finqa_cli.extend.plugin_calls.SLOWEST_CALL_S", 0.01)
    body = method("score(self, request)", "import time; time.sleep(0.02); return Rewards(total=1.0)", plain=True)
    registry, file = registry_of("Judge", body)
    reward = registry.create("reward", "acme-reward", {})
    task = Task(id="bolts", prompt="How many?", split="train", cluster="bolts")
    request = RewardRequest(task=task, solution="7", truth="7")
    assert await asyncio.to_thread(reward.score, request) == Rewards(total=1.0), "a thread stops no episode"
    assert "score()" not in capsys.readouterr().out
    assert [reward.score(request).total for _ in range(3)] == [1.0] * 3
    shown = capsys.readouterr().out
    assert shown.count("score() takes") == 1 and f"{file}:" in shown


class Bolts(Environment):
    """An environment that no plugin made, with a bug."""

    most = 3

    def data(self) -> DataInfo:
        raise KeyError("bolts")

    def splits(self) -> Sequence[str]:
        return ("train",)

    def tasks(self, split: str) -> Sequence[Task]:
        return ()

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> Session:
        raise EnvironmentFault("The server is away.")


async def test_a_guard_is_the_component_to_everyone_else() -> None:
    guard = guarded(Bolts(), "environment")
    assert isinstance(guard, Environment) and guard.most == 3 and guarded(guard, "environment") is guard
    assert guard.splits() == ("train",) and not hasattr(guard, "least")
    with pytest.raises(EnvironmentFault, match="The server is away"):
        await guard.open(Task(id="b", prompt="", split="train", cluster="b"), seed=0, sandbox=None)
    with pytest.raises(PluginError, match=rf"Bolts.data\(\) raised KeyError: 'bolts' \({__file__}:\d+\)\.$"):
        guard.data()
