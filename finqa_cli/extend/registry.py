"""The registry: finds plugins, handles broken ones, creates components by name, and checks if they can be used."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

import pluggy
import structlog
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
from finqa_cli.errors import ConfigError, FinqaError, MissingDependencyError
from finqa_cli.extend.hookspecs import KINDS, Component, Kind
from finqa_cli.extend.plugin_calls import (
    Owner,
    construct,
    definition,
    describe,
    find_place,
    guarded,
    plugin_homes,
    wrong_member,
)
from finqa_cli.extend.wrong_names import did_you_mean, option_error
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

SLOWEST_IMPORT_S = 0.3
"""Seconds that the import of a plugin may take without a warning: every command imports every plugin."""

_BUILT_IN = "finqa_plugins"
"""The package of the plugins that are part of finqa; see `Registry.is_built_in`."""

_TARGETS = ("target", "config", "readiness", "verdict")
"""Fields of a component with the form `package.module:attribute`."""

_CHECKOUT = Path(__file__).parents[2]
"""The folder that contains the package `finqa_cli`."""

Result = TypeVar("Result")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """Report about one entry point.

    Attributes:
        name: Name of the entry point.
        module: Module that it names.
        distribution: Distribution that declares it; empty if not known.
        version: Version of that distribution.
        components: Components that it registered.
        error: Why nothing of it is registered; empty if there is no problem.
        left_out: Kind and name of components that are not registered -> reason.
        warnings: Problems of a plugin that works: a slow import, output on stdout.
    """

    name: str
    module: str
    distribution: str
    version: str
    components: tuple[Component, ...]
    error: str = ""
    left_out: Mapping[tuple[str, str], str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """Name of the plugin in messages."""
        return f"plugin {self.name!r} of {self.distribution or self.module}"


class Registry:
    """All components by kind and name, and the hooks. Of two components with the same name, the first one is used."""

    def __init__(self, entries: Iterable[EntryPoint]) -> None:
        self.manager = pluggy.PluginManager(hookspecs.GROUP)
        self.manager.add_hookspecs(hookspecs)
        self._components: dict[tuple[str, str], Component] = {}
        self._warned: set[tuple[str, str]] = set()
        self._failing: set[tuple[str, str]] = set()
        self.reports: list[PluginReport] = []
        for entry in entries:
            self.reports.append(self._load(entry))

    @property
    def hook(self) -> Any:
        """The hook relay of pluggy: `registry.hook.on_update(...)` calls every plugin."""
        return self.manager.hook

    def each(self, hook: str) -> list[tuple[str, pluggy.HookCaller]]:
        """Return a caller of the hook for each plugin that implements it, with the name of the plugin.

        It is for hooks in which the failure of one plugin must not affect the others.
        """
        plugins = self.manager.list_name_plugin()
        names = [one.plugin_name for one in getattr(self.hook, hook).get_hookimpls()]
        others = {name: [plugin for other, plugin in plugins if other != name] for name in names}
        return [(name, self.manager.subset_hook_caller(hook, others[name])) for name in names]

    def first(self, hook: str, wanted: type[Result], **facts: Any) -> Result | None:
        """Return the first result of a hook that is not None; None if no plugin has one.

        If a plugin returns another type, or a plugin that is not part of finqa raises, a warning is logged and the
        plugin is not called again for this hook.

        Args:
            hook: Name of the hook.
            wanted: Type of its result.
            facts: Its arguments.

        Raises:
            FinqaError: A plugin raised it.
            Exception: A plugin that is part of finqa raised it.
        """
        for plugin, caller in reversed(self.each(hook)):
            report = next((each for each in self.reports if each.name == plugin and not each.error), None)
            if (hook, plugin) in self._failing:
                continue
            try:
                answer = caller(**facts)
                if isinstance(answer, wanted):
                    return answer
                if answer is None:
                    continue
                what = f"returned a {type(answer).__name__}, not a {wanted.__name__}"
                failure = f"{what} ({definition(self.implementation(plugin, hook))})"
            except FinqaError:
                raise
            except Exception as error:
                if report is not None and is_built_in(report.module):
                    raise
                failure = self.describe_failure(plugin, hook, error)
            self._failing.add((hook, plugin))
            # Log: Once, when a hook of a plugin raises an exception.
            log.warning(f"{hook}() of {report.shown if report else plugin} is ignored: it {failure}")
        return None

    def implementation(self, plugin: str, hook: str) -> Callable[..., Any]:
        """Return the function of a plugin for a hook."""
        found = getattr(self.hook, hook).get_hookimpls()
        implementation: Callable[..., Any] = next(each.function for each in found if each.plugin_name == plugin)
        return implementation

    def describe_failure(self, plugin: str, hook: str, error: Exception) -> str:
        """Describe an exception of a plugin in a hook, with `FILE:LINE`."""
        home = next((_home(each.module) for each in self.reports if each.name == plugin and not each.error), None)
        return f"raised {describe(error)} ({find_place(error, home, self.implementation(plugin, hook))})"

    def components(self, kind: str | None = None) -> tuple[Component, ...]:
        """Return all registered components, or those of one kind, sorted by kind and name."""
        chosen = (component for (_, _), component in sorted(self._components.items()))
        return tuple(component for component in chosen if kind in (None, component.kind))

    def find(self, kind: str, name: str) -> Component:
        """Return a component by kind and name; plugins may find unregistered ones, see `hookspecs.find_component`.

        Raises:
            ConfigError: There is no such component; the message names the nearest one.
        """
        if component := self._components.get((kind, name)):
            return component
        if (found := self.first("find_component", Component, kind=kind, name=name)) is not None:
            return found
        known = sorted(known_name for known_kind, known_name in self._components if known_kind == kind)
        listed = f"{did_you_mean(name, known)} Known: {', '.join(known) or 'none'}."
        raise ConfigError(f"There is no {kind} named {name!r}.{listed}{self.broken()}", remedy="finqa plugins")

    def broken(self) -> str:
        """Return sentences about the plugins that cannot be loaded, with `FILE:LINE`; empty without such plugins.

        They end the message of an unknown name, because one of them may have registered it.
        """
        found = ((report.shown, report.error) for report in self.reports if report.error)
        return "".join(f" {shown[0].upper()}{shown[1:]} cannot be loaded: {error}." for shown, error in found)

    def config(self, component: Component, options: Mapping[str, Any]) -> BaseModel | None:
        """Validate the options of a component; None if it has no options.

        Raises:
            ConfigError: An option is unknown or has a wrong value, or the plugin names a class that does not exist.
            ImportError: See `config_class`.
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
            if taken := component.given.keys() & options.keys():
                raise ConfigError(
                    f"{component.kind} {component.name!r} has no option {min(taken)!r}: it is set by its name.",
                    remedy=f"finqa plugins show {component.name}",
                )
            return model.model_validate({**options, **component.given})
        except ValidationError as error:
            known = [name for name in model.model_fields if name not in component.given]
            raise option_error(component, error, known) from error

    def config_class(self, component: Component) -> type[BaseModel] | None:
        """Return the class that validates the options of a component; None if it has no options.

        Raises:
            ConfigError: The plugin names a class that does not exist, or is not a pydantic model.
            ImportError: The module of the class needs packages that are not installed.
        """
        if not component.config:
            return None
        found = self._imported(component, component.config)
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            raise self._unusable(component, f"{component.config} ({definition(found)}) is not a pydantic model")
        return found

    def create(self, kind: str, name: str, options: Mapping[str, Any], *context: object) -> Any:
        """Import and construct a component: `Class(config, *context)`.

        Calls into a component that is not part of finqa are checked, see `plugin_calls`.

        Raises:
            ConfigError: The name or an option is wrong. Or the plugin names a class that does not exist, is abstract,
                or does not derive from the base class of its kind, perhaps because it was made for another version.
            MissingDependencyError: Its packages are not installed; the remedy is the pip command.
            PluginError: The constructor of a component that is not part of finqa raised.
        """
        component = self.find(kind, name)
        self._warn_of_left_out(kind)
        if missing := missing_requirements(component):
            raise MissingDependencyError(
                f"{kind} {name!r} needs {', '.join(missing)}, which is not installed.",
                remedy=f"pip install 'finqa[{component.extra}]'" if component.extra else f"pip install {missing[0]}",
            )
        config = self.config(component, options)
        target, contracts = self._imported(component, component.target), CONTRACTS[component.kind]
        if abstract := sorted(getattr(target, "__abstractmethods__", ())):
            raise self._unusable(component, f"{component.target} lacks {', '.join(abstract)}")
        owner = self._owner(component)
        built = target(config, *context) if owner is None else construct(target, (config, *context), owner)
        if not isinstance(built, contracts):
            wanted = " or ".join(f"finqa_cli.contracts.{contract.__name__}" for contract in contracts)
            raise self._unusable(component, f"{component.target} is not a subclass of {wanted}")
        if owner is None:
            return built
        if wrong := wrong_member(built):
            raise self._unusable(component, wrong)
        return guarded(built, component.kind, owner)

    def function(self, component: Component, target: str) -> Callable[..., Any]:
        """Import the class or function that a component names as `package.module:attribute`.

        Raises:
            ConfigError: There is no such module or attribute.
        """
        found: Callable[..., Any] = self._imported(component, target)
        return found

    def load(self, kind: str, name: str) -> None:
        """Import the class of a component in any thread, which may take seconds; `create` raises what fails here.

        Raises:
            ConfigError: The name is wrong.
        """
        component = self.find(kind, name)
        with contextlib.suppress(Exception):
            self._imported(component, component.target)

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

    def report_of(self, component: Component) -> PluginReport | None:
        """Return the plugin of a component; if `find_component` found it, the plugin whose package has its class."""
        registered = (report for report in self.reports if component in report.components)
        found = (report for report in self.reports if component.target.startswith(f"{package_of(report.module)}."))
        return next(registered, None) or next(found, None)

    def _owner(self, component: Component) -> Owner | None:
        """Return the owner to which calls into a component are attributed; None if it is part of finqa."""
        report = self.report_of(component)
        if report is None or is_built_in(report.module):
            return None
        return Owner(kind=component.kind, name=component.name, plugin=report.shown, home=_home(report.module))

    def _warn_of_left_out(self, kind: str) -> None:
        """Log a warning about each component of this kind that is not registered, once per process."""
        for report in self.reports:
            for key, reason in report.left_out.items():
                if key[0] == kind and key not in self._warned:
                    self._warned.add(key)
                    # Log: Once, when a component of a plugin cannot be registered; `finqa plugins` shows it.
                    log.warning(f"{kind} {key[1]!r} of {report.shown} is ignored: {reason}")

    def _unusable(self, component: Component, reason: str) -> ConfigError:
        report = self.report_of(component)
        name = report.shown if report else "its plugin"
        module = self.manager.get_plugin(report.name) if report else None
        place = f" ({definition(getattr(module, 'register_components', module))})" if module else ""
        return ConfigError(
            f"{component.kind} {component.name!r} cannot be used: {reason}. This is an error of {name}{place}.",
            remedy=f"fix or upgrade the plugin, or choose another {component.kind}: finqa plugins",
        )

    def _load(self, entry: EntryPoint) -> PluginReport:
        facts: dict[str, Any] = {"name": entry.name, "module": entry.value, **_source(entry.dist)}
        printed = io.StringIO()
        began = time.perf_counter()
        # The module of another author may raise anything, or exit; the other plugins must still be loaded.
        try:
            with redirect_stdout(printed):  # stdout belongs to the command, which may print JSON there
                plugin = entry.load()
            seconds = time.perf_counter() - began
            if (first := self.manager.get_name(plugin)) is not None:
                raise ValueError(f"{entry.value} is already registered, as {first!r}")
        except (Exception, SystemExit) as error:
            return PluginReport(**facts, components=(), error=_describe_import(error, entry.value))
        try:
            with redirect_stdout(printed):
                self.manager.register(plugin, name=entry.name)
                self.manager.check_pending()
                components, left_out = self._collect(plugin)
        except (Exception, SystemExit) as error:
            if self.manager.is_registered(plugin):
                self.manager.unregister(plugin)
            place = find_place(error, _home(entry.value), _mistaken_hook(plugin, error))
            return PluginReport(**facts, components=(), error=f"{describe(error)} ({place})")
        if not is_built_in(entry.value):
            plugin_homes.add(_home(entry.value))
        warnings = _warnings(entry.value, seconds, printed.getvalue())
        self._components.update({(component.kind, component.name): component for component in components})
        return PluginReport(**facts, components=components, left_out=left_out, warnings=warnings)

    def _collect(self, plugin: object) -> tuple[tuple[Component, ...], dict[tuple[str, str], str]]:
        """Return the components that a plugin registers, and reasons for those that are not registered."""
        register = getattr(plugin, "register_components", None)
        given = tuple(register()) if register is not None else ()
        found: dict[tuple[str, str], Component] = {}
        left_out: dict[tuple[str, str], str] = {}
        for component in given:
            if not isinstance(component, Component):
                raise TypeError(f"register_components() gave a {type(component).__name__}, not a Component")
            key = (component.kind, component.name)
            if component.kind not in KINDS:
                raise ValueError(f"{component.kind!r} is not a kind of component; kinds are {', '.join(KINDS)}")
            for name in _TARGETS:
                value = getattr(component, name)
                if value and not all(part.strip() for part in (*value.partition(":"),)):
                    raise ValueError(f"{name} {value!r} of {component.kind} {component.name!r} is not MODULE:NAME")
            if key in found:
                raise ValueError(f"{component.kind} {component.name!r} is registered twice")
            if (first := self._components.get(key)) is not None:
                report = self.report_of(first)
                owner = report.shown if report else "another plugin"
                left_out[key] = f"the name belongs to {owner} ({definition(register)})"
            else:
                found[key] = component
        return tuple(found.values()), left_out


@cache
def _source(distribution: Distribution | None) -> Mapping[str, str]:
    """Return name and version of a distribution. Cached for all its plugins, because each call parses its METADATA."""
    found = distribution.metadata if distribution else {"Name": "", "Version": ""}
    return {"distribution": found["Name"], "version": found["Version"]}


def package_of(module: str) -> str:
    """Return the package of a plugin's module; the module itself if it is in no package."""
    return module.rpartition(".")[0] or module


def is_built_in(module: str) -> bool:
    """Return whether a plugin's module is part of finqa."""
    return module.partition(".")[0] == _BUILT_IN


def _home(module: str) -> Path:
    """Return the folder of the top-level package of a plugin's module; the file of a module without a package."""
    found = sys.modules.get(module.partition(".")[0])
    folders = list(getattr(found, "__path__", ()))
    return Path(folders[0] if folders else getattr(found, "__file__", None) or "/")


def _describe_import(error: BaseException, module: str) -> str:
    """Describe an exception of the import of a plugin, with `FILE:LINE` if that is outside of libraries."""
    if isinstance(error, SyntaxError):
        return f"{describe(error)} ({error.filename}:{error.lineno})"
    place = find_place(error, None, None)
    return describe(error) if place == "NoneType" else f"{describe(error)} ({place})"


def _mistaken_hook(plugin: object, error: BaseException) -> object:
    """Return the hook function of a plugin that pluggy rejected; `register_components` if it rejected none."""
    refused = error if isinstance(error, pluggy.PluginValidationError) else ""
    hooks = {name: value for name, value in vars(plugin).items() if hasattr(value, f"{hookspecs.GROUP}_impl")}
    found = (value for name, value in hooks.items() if re.search(rf"\b{name}\b", str(refused)))
    return next(found, getattr(plugin, "register_components", plugin))


def _warnings(module: str, seconds: float, printed: str) -> tuple[str, ...]:
    slow = seconds > SLOWEST_IMPORT_S and not is_built_in(module)
    remedies = "import heavy packages in the module that `target` names"
    file = getattr(sys.modules.get(module), "__file__", None) or module
    return (
        *([f"its import takes {seconds:.1f} s in every command ({file}): {remedies}"] if slow else []),
        *([f"it prints {printed.strip()[:60]!r} to stdout when it is imported ({file})"] if printed.strip() else []),
    )


@lru_cache(maxsize=1)
def registry() -> Registry:
    """Return the registry of this process. It is loaded once from the installed entry points, finqa's own first."""
    checkout = checkout_entries(_CHECKOUT)
    installed = (
        entry
        for entry in entry_points(group=hookspecs.GROUP)
        # What an older installation of the checkout declares may have moved.
        if _source(entry.dist)["distribution"] not in checkout or entry in checkout[_source(entry.dist)["distribution"]]
    )
    found = (*(entry for entries in checkout.values() for entry in entries), *installed)
    entries = {(entry.name, entry.value): entry for entry in found}  # an installed one knows its distribution
    return Registry(sorted(entries.values(), key=lambda entry: (not is_built_in(entry.value), entry.name)))


def checkout_entries(checkout: Path) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points in the pyproject.toml files of a checkout; empty if finqa does not run from one.

    So a machine without network can run a checkout with `PYTHONPATH=CHECKOUT:CHECKOUT/plugins`, and a component that a
    `git pull` has added or moved is known before finqa is installed again.

    Returns:
        Name of each distribution in the checkout -> its entry points.
    """
    files = (checkout / "pyproject.toml", *sorted(checkout.glob("plugins/*/pyproject.toml")))
    projects = [tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}) for file in files if file.is_file()]
    if not projects or projects[0].get("name") != "finqa":
        return {}
    declared = {project["name"]: project.get("entry-points", {}).get(hookspecs.GROUP, {}) for project in projects}
    return {
        name: tuple(EntryPoint(plugin, module, hookspecs.GROUP) for plugin, module in plugins.items())
        for name, plugins in declared.items()
    }


def missing_requirements(component: Component) -> tuple[str, ...]:
    """Return the required import names of a component that are not installed, without importing them."""
    return tuple(name for name in component.requires if importlib.util.find_spec(name) is None)


def readiness(registry: Registry, component: Component, settings: Mapping[str, Any]) -> list[Check]:
    """Return what prevents the use of a component (`fail`), or some of its uses (`warn`); empty if nothing does.

    Never raises: if a plugin's function raises, the result is a failed check.

    Args:
        registry: The registry of the component.
        component: The component.
        settings: All settings as JSON values; they contain the component's options if it is chosen.
    """
    if missing := missing_requirements(component):
        remedy = f"pip install 'finqa[{component.extra}]'" if component.extra else f"pip install {' '.join(missing)}"
        return [Check(name=component.name, status="fail", detail=f"needs {', '.join(missing)}", remedy=remedy)]
    if not component.readiness:
        return []
    try:
        return [check for check in registry.function(component, component.readiness)(settings) if check.status != "ok"]
    except (Exception, SystemExit) as error:  # a plugin of another author may raise anything
        detail = f"its check failed: {type(error).__name__}: {error}"
        return [Check(name=component.name, status="fail", detail=detail, remedy="report it to the plugin's author")]
