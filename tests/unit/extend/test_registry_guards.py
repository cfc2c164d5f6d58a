from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from textwrap import dedent

import pytest
from fixtures.plugin_entry_points import PACKAGE, entry

import finqa_cli
from finqa_cli import contracts
from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import ConfigError, MissingDependencyError
from finqa_cli.extend import KINDS, Component, Registry, hookimpl, registry
from finqa_cli.extend.registry import CONTRACTS, checkout_entries
from finqa_cli.types import Group, Rewards, Status, Task, Trajectory


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(PACKAGE))
    yield


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], EntryPoint]:
    """Makes a module of this source, and gives the entry point to it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, source: str) -> EntryPoint:
        (tmp_path / f"{name}.py").write_text(dedent(source))
        return EntryPoint(name=name, value=name, group="finqa")

    return write


Written = Callable[[str, str], EntryPoint]


def group_of(*rewards: float | None) -> Group:
    task = Task(id="q", prompt="?", split="train", cluster="c")
    members = [
        Trajectory(
            id=f"t/q/{member}",
            task=task,
            member=member,
            seed=0,
            status=Status.SANDBOX_ERROR if reward is None else Status.COMPLETED,
            turns=(),
            rewards=None if reward is None else Rewards(total=reward),
        )
        for member, reward in enumerate(rewards)
    ]
    return Group(task=task, trajectories=tuple(members))


def test_a_strangers_component_is_found_configured_and_works() -> None:
    registry = Registry([entry("plugin")])
    (report,) = registry.reports
    assert report.error == "" and [component.name for component in report.components] == ["leave-one-out"]
    optimizer = registry.create("optimizer", "leave-one-out", {"scale": 2.0})
    assert optimizer.credit(group_of(1.0, 0.0, None)).advantages == (2.0, -2.0, None)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("cannot_import", "a_package_that_nobody_has"),
        ("misspelt_hook", "register_componets"),
        ("does_not_exist", "finqa_example.does_not_exist"),
    ],
)
def test_a_broken_plugin_is_reported_and_the_others_work(module: str, reason: str) -> None:
    registry = Registry([entry("broken", module), entry("plugin")])
    broken, sound = registry.reports
    assert reason in broken.error and broken.components == ()
    assert sound.error == "" and registry.find("optimizer", "leave-one-out")
    assert not registry.manager.has_plugin("broken")


def test_a_plugin_that_ends_the_process_is_reported_too(written: Written, tmp_path: Path) -> None:
    registry = Registry([written("unlicensed_plugin", "raise SystemExit('no licence')"), entry("plugin")])
    place = tmp_path / "unlicensed_plugin.py"
    assert [report.error for report in registry.reports] == [f"SystemExit: no licence ({place}:1)", ""]


def test_a_component_of_a_taken_name_is_left_out_and_nothing_else(
    written: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = """
        from finqa_cli.extend import Component, hookimpl

        @hookimpl
        def register_components():
            return [
                Component(kind="optimizer", name="grpo", target="elsewhere:Grpo"),
                Component(kind="optimizer", name="median", target="finqa_example.optimizer:LeaveOneOut"),
            ]
        """
    registry = Registry([entry("first", "duplicate"), written("second_grpo", again), entry("third", "plugin")])
    assert [report.error for report in registry.reports] == ["", "", ""]
    reason = f"the name belongs to plugin 'first' of finqa_example.duplicate ({tmp_path / 'second_grpo.py'}:4)"
    assert registry.reports[1].left_out == {("optimizer", "grpo"): reason}
    assert registry.find("optimizer", "grpo").target == "finqa_example.optimizer:LeaveOneOut"
    assert [part.name for part in registry.components("optimizer")] == ["grpo", "leave-one-out", "median"]
    for _ in range(2):
        registry.create("optimizer", "leave-one-out", {"scale": 1.0})
    assert capsys.readouterr().out.count("optimizer 'grpo' of plugin 'second_grpo' of second_grpo is ignored") == 1


def test_a_module_that_is_named_twice_keeps_its_hooks() -> None:
    registry = Registry([entry("first", "duplicate"), entry("second", "duplicate"), entry("first", "duplicate")])
    assert [bool(report.error) for report in registry.reports] == [False, True, True]
    assert "already registered, as 'first'" in registry.reports[1].error
    assert registry.manager.list_name_plugin()[0][0] == "first" and len(registry.hook.register_components()) == 1


@pytest.mark.parametrize(
    "text", ["import a_package_that_is_absent", "def register_components(:", "raise SystemExit", "x = 1 / 0"]
)
def test_an_unknown_name_tells_which_plugins_are_broken(written: Written, tmp_path: Path, text: str) -> None:
    registry = Registry([written("broken_plugin", text), entry("plugin")])
    with pytest.raises(ConfigError, match="There is no optimizer named 'bad'") as caught:
        registry.find("optimizer", "bad")
    assert "Plugin 'broken_plugin' of broken_plugin cannot be loaded: " in caught.value.message
    assert f"{tmp_path / 'broken_plugin.py'}:1)" in caught.value.message


def test_an_unknown_name_says_what_was_meant() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'leave-one-out'") as caught:
        Registry([entry("plugin")]).find("optimizer", "leave-one-oot")
    assert caught.value.remedy == "finqa plugins"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scael": 1.0}, "Did you mean 'scale'"),
        ({"scale": -1}, "greater than 0"),
        ({"scale": "many"}, "valid number"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Registry([entry("plugin")]).create("optimizer", "leave-one-out", options)
    assert caught.value.remedy == "finqa plugins show leave-one-out"


def test_options_for_a_component_without_any_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes no options"):
        Registry([entry("first", "duplicate")]).create("optimizer", "grpo", {"a": 1})


class Needy:
    @hookimpl
    def register_components(self) -> list[Component]:
        needs = ("a_package_that_nobody_has",)
        return [
            Component(kind="engine", name="far", target="nowhere:Nothing", requires=needs, extra="vllm"),
            Component(kind="engine", name="alone", target="nowhere:Nothing", requires=needs),
        ]


@pytest.mark.parametrize(
    ("name", "remedy"), [("far", "pip install 'finqa[vllm]'"), ("alone", "pip install a_package_that_nobody_has")]
)
def test_missing_packages_name_the_command_that_brings_them(name: str, remedy: str) -> None:
    registry = Registry([])
    registry.manager.register(Needy())
    registry._components = {(part.kind, part.name): part for part in Needy().register_components()}
    with pytest.raises(MissingDependencyError) as caught:
        registry.create("engine", name, {})
    assert caught.value.remedy == remedy


def test_every_kind_has_a_contract() -> None:
    assert set(CONTRACTS) == set(KINDS)


MISTAKEN = """
    from pydantic import BaseModel, SecretStr
    from finqa_cli.extend import Component, hookimpl

    class Older:
        def __init__(self, config):
            pass

        def credit(self, group):
            raise NotImplementedError

    class Keyed(BaseModel):
        api_key: SecretStr

    @hookimpl
    def register_components():
        targets = {
            "no-module": "mistaken_modul:Older",
            "no-class": "mistaken_plugin:Oldr",
            "no-base": "mistaken_plugin:Older",
            "needy": "fixtures_need:Class",
        }
        found = [Component(kind="optimizer", name=name, target=target) for name, target in targets.items()]
        config = "mistaken_plugin:Keyd"
        return [
            *found,
            Component(kind="optimizer", name="no-config", target="mistaken_plugin:Older", config=config),
            Component(kind="engine", name="keyed", target="mistaken_plugin:Older", config="mistaken_plugin:Keyed"),
        ]
    """


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no-module", "there is no module mistaken_modul"),
        ("no-class", "mistaken_plugin has no 'Oldr'"),
        ("no-config", "mistaken_plugin has no 'Keyd'"),
        ("no-base", "mistaken_plugin:Older is not a subclass of finqa_cli.contracts.Optimizer"),
    ],
)
def test_a_mistake_of_a_plugin_is_told_as_one(written: Written, name: str, reason: str) -> None:
    registry = Registry([written("mistaken_plugin", MISTAKEN)])
    with pytest.raises(ConfigError, match=reason) as caught:
        registry.create("optimizer", name, {})
    assert "an error of plugin 'mistaken_plugin'" in caught.value.message
    assert re.search(r"mistaken_plugin\.py:\d+", caught.value.message) and "another optimizer" in caught.value.remedy


STRANGERS = """
    from finqa_cli.contracts import Reward, TokenEngine
    from finqa_cli.extend import KINDS, Component, hookimpl

    class Duck:
        def __init__(self, config): ...
        def __getattr__(self, name):
            return lambda *arguments: None

    class UnfinishedReward(Reward): ...
    class UnfinishedEngine(TokenEngine): ...

    @hookimpl
    def register_components():
        ducks = [Component(kind=kind, name="duck", target="strangers:Duck") for kind in KINDS]
        unfinished = [
            Component(kind=kind, name="unfinished", target=f"strangers:Unfinished{kind.title()}")
            for kind in ("reward", "engine")
        ]
        return [*ducks, *unfinished]
    """


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        ("sandbox", "finqa_cli.contracts.SandboxProvider"),
        ("environment", "finqa_cli.contracts.Environment"),
        ("engine", "finqa_cli.contracts.TokenEngine or finqa_cli.contracts.ChatEngine"),
        ("codec", "finqa_cli.contracts.ChatCodec"),
        ("call_format", "finqa_cli.contracts.CallFormat"),
        ("optimizer", "finqa_cli.contracts.Optimizer"),
        ("learner", "finqa_cli.contracts.Learner"),
        ("tracker", "finqa_cli.contracts.Tracker"),
        ("reward", "finqa_cli.contracts.Reward"),
    ],
)
def test_a_component_that_only_looks_like_its_kind_is_told_what_to_derive_from(
    written: Written, kind: str, bases: str
) -> None:
    registry = Registry([written("strangers", STRANGERS)])
    with pytest.raises(ConfigError) as caught:
        registry.create(kind, "duck", {})
    assert f"strangers:Duck is not a subclass of {bases}. This is an error of plugin" in caught.value.message
    for base in bases.split(" or "):
        assert hasattr(contracts, base.removeprefix("finqa_cli.contracts."))


@pytest.mark.parametrize(
    ("kind", "lacking"),
    [("reward", "Reward lacks score"), ("engine", "Engine lacks close, generate, load")],
)
def test_a_component_has_the_required_methods(written: Written, kind: str, lacking: str) -> None:
    registry = Registry([written("strangers", STRANGERS)])
    with pytest.raises(ConfigError, match=f"strangers:Unfinished{lacking}"):
        registry.create(kind, "unfinished", {})


def test_a_package_that_a_target_needs_is_missing_and_not_its_module(written: Written) -> None:
    written("fixtures_need", "import a_package_that_nobody_has")
    registry = Registry([written("mistaken_plugin", MISTAKEN)])
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        registry.create("optimizer", "needy", {})


def test_a_wrong_key_is_not_shown(written: Written) -> None:
    registry = Registry([written("mistaken_plugin", MISTAKEN)])
    with pytest.raises(ConfigError, match="option 'api_key': Input should be a valid string") as caught:
        registry.create("engine", "keyed", {"api_key": 123456789})
    assert "123456789" not in caught.value.message


def test_a_checkout_declares_its_plugins_itself(tmp_path: Path) -> None:
    declared = checkout_entries(Path(finqa_cli.__file__).parents[1])
    entries = [entry for plugins in declared.values() for entry in plugins]
    assert {entry.value for entry in entries} == {
        report.module for report in registry().reports if report.module.startswith("finqa_")
    }
    assert not any(report.error for report in Registry(entries).reports)
    assert checkout_entries(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')
    assert checkout_entries(tmp_path) == {}


def test_what_an_older_installation_of_the_checkout_declared_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "finqa-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: finqa\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text("[finqa]\nmoved = finqa_plugins.moved.plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [entry.name for entry in entry_points(group="finqa") if entry.dist and entry.dist.version == "0.0.1"]
    assert "moved" not in {report.name for report in registry.__wrapped__().reports}


@pytest.mark.parametrize("name", ["finqa-text", "forecast"])
def test_environments_that_say_so_need_no_sandbox(name: str) -> None:
    assert registry().find("environment", name).sandboxless
    environment = registry().create("environment", name, {}, EnvironmentContext(snapshot=None))
    assert environment.sandbox_spec() is None
