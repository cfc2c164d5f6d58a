"""Finds plugins, guards against broken ones, turns names into objects, and says whether they can be used here."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any

import pluggy
from pydantic import BaseModel, ValidationError

import finqa_cli.extend.hookspecs as hookspecs
from finqa_cli.contracts import (
    CallFormat,
    ChatCodec,
    ChatEngine,
    Environment,
    Learner,
    Optimizer,
    Reward,
    SandboxProvider,
    TokenEngine,
    Tracker,
)
from finqa_cli.errors import ConfigError, MissingDependencyError
from finqa_cli.extend.hookspecs import KINDS, Component, Kind
from finqa_cli.masking import MASK, is_secret
from finqa_cli.types import Check

CONTRACTS: Mapping[Kind, tuple[type, ...]] = {
    "sandbox": (SandboxProvider,),
    "environment": (Environment,),
    "engine": (TokenEngine, ChatEngine),
    "codec": (ChatCodec,),
    "call_format": (CallFormat,),
    "optimizer": (Optimizer,),
    "learner": (Learner,),
    "tracker": (Tracker,),
    "reward": (Reward,),
}
"""The base classes of each kind; a component derives from one of them."""

_CHECKOUT = Path(__file__).parents[2]
"""The folder that has `finqa_cli` in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """One entry point as it loaded. `error` is empty when all is well; otherwise nothing of it is registered."""

    name: str
    module: str
    distribution: str
    version: str
    components: tuple[Component, ...]
    error: str = ""


class Registry:
    """All components by kind and name, and the hook relay."""

    def __init__(self, entries: Iterable[EntryPoint]) -> None:
        self.manager = pluggy.PluginManager(hookspecs.GROUP)
        self.manager.add_hookspecs(hookspecs)
        self._components: dict[tuple[str, str], Component] = {}
        self.reports: tuple[PluginReport, ...] = tuple(self._load(entry) for entry in entries)

    @property
    def hook(self) -> Any:
        """Pluggy's relay: `registry.hook.on_update(...)` calls every plugin."""
        return self.manager.hook

    def each(self, hook: str) -> list[tuple[str, pluggy.HookCaller]]:
        """A caller of the hook for every plugin that implements it, by the plugin's name.

        For hooks of which one that raises is to take no other with it.
        """
        plugins = self.manager.list_name_plugin()
        names = [one.plugin_name for one in getattr(self.hook, hook).get_hookimpls()]
        others = {name: [plugin for other, plugin in plugins if other != name] for name in names}
        return [(name, self.manager.subset_hook_caller(hook, others[name])) for name in names]

    def components(self, kind: str | None = None) -> tuple[Component, ...]:
        """All registered components, or those of one kind, by kind and name."""
        chosen = (component for (_, _), component in sorted(self._components.items()))
        return tuple(component for component in chosen if kind in (None, component.kind))

    def find(self, kind: str, name: str) -> Component:
        """The component, or a ConfigError that names the nearest one."""
        if component := self._components.get((kind, name)):
            return component
        known = sorted(known_name for known_kind, known_name in self._components if known_kind == kind)
        raise ConfigError(
            f"There is no {kind} named {name!r}.{_did_you_mean(name, known)} Known: {', '.join(known) or 'none'}.",
            remedy="finqa plugins",
        )

    def config(self, component: Component, options: Mapping[str, Any]) -> BaseModel | None:
        """Validates a component's own options.

        Raises:
            ConfigError: An option is unknown or has a wrong value, or the plugin names no class that is there.
        """
        model = self.config_class(component)
        if model is None:
            if options:
                raise ConfigError(
                    f"{component.kind} {component.name!r} takes no options, but got: {', '.join(options)}.",
                    remedy=f"finqa plugins show {component.name}",
                )
            return None
        try:
            return model.model_validate(dict(options))
        except ValidationError as error:
            raise _option_error(component, error, list(model.model_fields)) from error

    def config_class(self, component: Component) -> type[BaseModel] | None:
        """What validates a component's options; None when it takes none.

        Raises:
            ConfigError: The plugin names a class that is not there.
            ImportError: The class is in a module that needs packages that are not installed.
        """
        if not component.config:
            return None
        found: type[BaseModel] = self._imported(component, component.config)
        return found

    def create(self, kind: str, name: str, options: Mapping[str, Any], *context: object) -> Any:
        """Imports and constructs a component: `Class(config, *context)`.

        Raises:
            ConfigError: The name or an option is wrong; or the plugin names a class that is not there, or one that does
                not derive from the base class of its kind, as when it was made for another version of finqa.
            MissingDependencyError: Its packages are not installed; the remedy is the pip command.
        """
        component = self.find(kind, name)
        if missing := missing_requirements(component):
            raise MissingDependencyError(
                f"{kind} {name!r} needs {', '.join(missing)}, which is not installed.",
                remedy=f"pip install 'finqa[{component.extra}]'" if component.extra else f"pip install {missing[0]}",
            )
        config = self.config(component, options)
        target, contracts = self._imported(component, component.target), CONTRACTS[component.kind]
        if abstract := sorted(getattr(target, "__abstractmethods__", ())):
            raise self._unusable(component, f"{component.target} lacks {', '.join(abstract)}")
        built = target(config, *context)
        if not isinstance(built, contracts):
            wanted = " or ".join(f"finqa_cli.contracts.{contract.__name__}" for contract in contracts)
            raise self._unusable(component, f"{component.target} does not derive from {wanted}")
        return built

    def function(self, component: Component, target: str) -> Callable[..., Any]:
        """A function that a component names as `package.module:function`.

        Raises:
            ConfigError: There is no such module or function.
        """
        found: Callable[..., Any] = self._imported(component, target)
        return found

    def _imported(self, component: Component, target: str) -> Any:
        module, _, attribute = target.partition(":")
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise  # a package that the module needs: the caller knows how to install it
            raise self._unusable(component, f"there is no module {module}") from error
        try:
            return getattr(found, attribute)
        except AttributeError as error:
            raise self._unusable(component, f"{module} has no {attribute!r}") from error

    def _unusable(self, component: Component, reason: str) -> ConfigError:
        owner = next((report for report in self.reports if component in report.components), None)
        name = f"plugin {owner.name!r} of {owner.distribution or owner.module}" if owner else "its plugin"
        return ConfigError(
            f"{component.kind} {component.name!r} cannot be used: {reason}. This is a fault of {name}.",
            remedy=f"fix or upgrade the plugin, or choose another {component.kind}: finqa plugins",
        )

    def _load(self, entry: EntryPoint) -> PluginReport:
        distribution = entry.dist
        facts = {
            "name": entry.name,
            "module": entry.value,
            "distribution": distribution.name if distribution else "",
            "version": distribution.version if distribution else "",
        }
        # A stranger's module may raise anything, or end the process; the rest of the product must go on.
        try:
            plugin = entry.load()
            if (first := self.manager.get_name(plugin)) is not None:
                raise ValueError(f"{entry.value} is already registered, as {first!r}")
        except (Exception, SystemExit) as error:
            return PluginReport(**facts, components=(), error=_told(error))
        try:
            self.manager.register(plugin, name=entry.name)
            self.manager.check_pending()
            components = self._collect(plugin)
        except (Exception, SystemExit) as error:
            if self.manager.is_registered(plugin):
                self.manager.unregister(plugin)
            return PluginReport(**facts, components=(), error=_told(error))
        self._components.update({(component.kind, component.name): component for component in components})
        return PluginReport(**facts, components=components)

    def _collect(self, plugin: object) -> tuple[Component, ...]:
        register = getattr(plugin, "register_components", None)
        components = tuple(register()) if register is not None else ()
        seen: set[tuple[str, str]] = set()
        for component in components:
            key = (component.kind, component.name)
            if component.kind not in KINDS:
                raise ValueError(f"{component.kind!r} is not a kind of component; kinds are {', '.join(KINDS)}")
            if key in self._components or key in seen:
                raise ValueError(f"{component.kind} {component.name!r} is already registered")
            seen.add(key)
        return components


@lru_cache(maxsize=1)
def registry() -> Registry:
    """The registry of this process, loaded from the installed entry points once."""
    entries = [*entry_points(group=hookspecs.GROUP), *checkout_entries(_CHECKOUT)]
    return Registry(sorted(entries, key=lambda entry: entry.name))


def checkout_entries(checkout: Path) -> tuple[EntryPoint, ...]:
    """Entry points of a checkout that is on the path without being installed, as its pyproject.toml declares them.

    None where finqa is installed: `entry_points` finds those. A machine without network can so run a checkout with
    `PYTHONPATH=CHECKOUT:CHECKOUT/plugins`.
    """
    try:
        distribution("finqa")
    except PackageNotFoundError:
        file = checkout / "pyproject.toml"
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}) if file.is_file() else {}
        declared = project.get("entry-points", {}).get(hookspecs.GROUP, {}) if project.get("name") == "finqa" else {}
        return tuple(EntryPoint(name, module, hookspecs.GROUP) for name, module in declared.items())
    return ()


def missing_requirements(component: Component) -> tuple[str, ...]:
    """Import names of the component that are not installed, found without importing them."""
    return tuple(name for name in component.requires if importlib.util.find_spec(name) is None)


def readiness(registry: Registry, component: Component, settings: Mapping[str, Any]) -> list[Check]:
    """What keeps a component from being used (`fail`), or from all of its uses (`warn`); empty when nothing does.

    Never raises: a plugin's function that does becomes a failed check.

    Args:
        registry: Where the component is registered.
        component: The component.
        settings: Those of the hook `doctor_checks`; its options count where it is the one that is chosen.
    """
    if missing := missing_requirements(component):
        remedy = f"pip install 'finqa[{component.extra}]'" if component.extra else f"pip install {' '.join(missing)}"
        return [Check(name=component.name, status="fail", detail=f"needs {', '.join(missing)}", remedy=remedy)]
    if not component.readiness:
        return []
    try:
        return [check for check in registry.function(component, component.readiness)(settings) if check.status != "ok"]
    except (Exception, SystemExit) as error:  # of a plugin that may be anybody's
        detail = f"its check failed: {type(error).__name__}: {error}"
        return [Check(name=component.name, status="fail", detail=detail, remedy="report it to the plugin's author")]


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _did_you_mean(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def _option_error(component: Component, error: ValidationError, known: list[str]) -> ConfigError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        what = f"has no option {field!r}.{_did_you_mean(field, known)} Options: {', '.join(known) or 'none'}."
    elif not field:
        what = f"options: {first['msg'].removeprefix('Value error, ')}."
    else:
        given = MASK if any(is_secret(str(part)) for part in first["loc"]) else repr(first["input"])
        what = f"option {field!r}: {first['msg']} (got {given})."
    return ConfigError(f"{component.kind} {component.name!r} {what}", remedy=f"finqa plugins show {component.name}")
