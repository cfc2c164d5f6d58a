"""The boundary to components: each call is checked, timed, and attributed to the plugin by name, file and line.

The registry returns a component of a plugin that is not part of finqa inside a `Guard`, and a player guards the
environment and the engine of its episodes, whose sessions and sandboxes are guarded with them. An exception that is not
a `FinqaError`, or a value of another type than the contract declares, becomes an error that names plugin, component,
method, file and line. If `FAULTS` has a fault for the method, that fault is raised: only one attempt fails, and the run
continues.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import re
import sys
import sysconfig
import time
import traceback
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

import structlog

from finqa_cli.contracts import BaseSession, CallError, Sandbox
from finqa_cli.errors import CodeFault, EngineError, EnvironmentFault, FinqaError, PluginError, SandboxError
from finqa_cli.types import Message, Observation, Prompt, Rewards, ToolSpec

Made = TypeVar("Made")

log = structlog.get_logger(__name__)

FAULTS: Mapping[tuple[str, str], type[FinqaError]] = {
    **{("environment", name): EnvironmentFault for name in ("open", "prompt", "begin_turn", "step", "reply")},
    **{("environment", name): EnvironmentFault for name in ("grade", "demonstrate", "demonstrate_task")},
    ("reward", "score"): CodeFault,
    ("engine", "generate"): EngineError,
    ("engine", "respond"): EngineError,
    ("engine", "load"): EngineError,
    **{
        ("codec", name): EngineError
        for name in ("opening", "tool_reply", "tool_replies", "user_reply", "history", "parse", "parse_calls")
    },
    **{("call_format", name): EngineError for name in ("find", "render", "words")},
    ("sandbox", "start"): SandboxError,
    ("sandbox", "execute"): SandboxError,
    ("sandbox", "url"): SandboxError,
}
"""Kind and method -> the fault of an episode, or of a sandbox start, that a failed call raises. Other failed calls
raise PluginError."""

SLOWEST_CALL_S = 1.0
"""Seconds that a plain method may hold up all episodes, which share one event loop, without a warning."""

plugin_homes: set[Path] = set()
"""Packages, modules and files of the loaded plugins that are not part of finqa."""

_slow: set[tuple[str, str, str]] = set()
_NUMBERS = (int, float, bool, complex)
_OWN = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The component to which calls are attributed.

    Attributes:
        kind: Kind of the component.
        name: Name of the component.
        plugin: Name of the plugin in messages, such as `plugin 'acme' of acme-finqa`; empty: it is part of finqa, or
            no plugin made it.
        home: Package, module or file of the plugin; stack frames inside it are attributed to the plugin. None: any
            code that is neither of finqa nor of a library.
    """

    kind: str
    name: str
    plugin: str = ""
    home: Path | None = None

    @property
    def allowed(self) -> tuple[type[Exception], ...]:
        """Exceptions that the contract allows; they are passed on unchanged."""
        return (FinqaError, CallError) if self.kind == "call_format" else (FinqaError,)

    def error(self, call: str, what: str, place: str) -> FinqaError:
        """Return the error of a failed call.

        Args:
            call: Name of the method.
            what: What is wrong with the call, as the end of a sentence.
            place: `FILE:LINE`.
        """
        kind = FAULTS.get((self.kind, call), PluginError)
        if not self.plugin:
            return kind(f"{self.name}.{call}() {what} ({place}).{_bug_at(place)}")
        remedy = f"correct {place}, or choose another {self.kind}"
        return kind(f"{self.kind} {self.name!r} ({self.plugin}): {call}() {what} ({place}).", remedy=remedy)


class Guard:
    """A component, session or sandbox of which each method and property of its contract is checked.

    `isinstance` and all other attributes are those of the component. Its calls to itself are not checked.
    """

    __slots__ = ("__weakref__", "_built", "_checked", "_owner")

    def __init__(self, built: object, owner: Owner) -> None:
        self._built = built
        self._owner = owner
        self._checked: dict[str, Any] = {}

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # so `isinstance` sees the component
        return type(self._built)

    def __repr__(self) -> str:
        return repr(self._built)

    def __getattr__(self, name: str) -> Any:
        if (method := self._checked.get(name)) is not None:
            return method
        kind: Any = type(self._built)
        declared = _declared(kind, name)
        if isinstance(declared, property):
            own = getattr(kind, name)
            return _check_call(
                lambda: getattr(self._built, name), getattr(own, "fget", own), declared.fget, self._owner
            )()
        value = getattr(self._built, name)
        if not inspect.isfunction(declared):
            return value
        self._checked[name] = method = _check_call(value, value, declared, self._owner)
        return method


def guarded(component: Made, kind: str, owner: Owner | None = None) -> Made:
    """Return a component with checked calls; the component itself if its calls are already checked.

    Args:
        component: The component.
        kind: Kind of the component.
        owner: To whom failed calls are attributed; None: it is part of finqa, or no plugin made it.
    """
    built: object = component
    if type(built) is not Guard:
        built = Guard(component, owner or Owner(kind=kind, name=type(component).__name__))
    return cast(Made, built)


def wrong_member(built: object) -> str:
    """Describe the first method of a component that is not a method, with `FILE:LINE`; empty if there is none."""
    for contract in _contracts(type(built)):
        for name, declared in vars(contract).items():
            own = inspect.getattr_static(built, name, None)
            method = isinstance(own, (staticmethod, classmethod)) or callable(own)
            if inspect.isfunction(declared) and not name.startswith("_") and not method:
                what = "a property" if isinstance(own, property) else _shown(own)
                return f"its {name} is {what}, but must be a method ({definition(type(built))})"
    return ""


def construct(target: Callable[..., Any], arguments: Sequence[object], owner: Owner) -> Any:
    """Call the class or function that makes a component. Exceptions are converted as those of a checked call."""
    passed_on: tuple[type[Exception], ...] = (*owner.allowed, ImportError)
    try:
        return target(*arguments)
    except passed_on:
        raise
    except Exception as error:
        called = vars(target).get("__init__", target) if isinstance(target, type) else target
        place = find_place(error, owner.home, called)
        raise owner.error(_name(target), f"raised {describe(error)}", place) from error


def describe(error: BaseException) -> str:
    """Return type and message of an exception on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}"[:400] if message else type(error).__name__


def find_place(error: BaseException, home: Path | None, called: object) -> str:
    """Return `FILE:LINE` of the innermost stack frame in the plugin; without such a frame, of `called`.

    Args:
        error: The exception.
        home: Package or file of the plugin; None: any code that is neither of finqa nor of a library, and then, if
            `called` is of finqa, code of finqa.
        called: Class, function or method that was called.
    """
    defined = definition(called)
    searched = ["user", *(["finqa"] if _bug_at(defined) else [])]
    for side in searched if home is None else ["home"]:
        raised: BaseException | None = error
        while raised is not None:  # a coroutine converts StopIteration to another error without its frames
            for frame in reversed(traceback.extract_tb(raised.__traceback__)):
                file = Path(frame.filename)
                if _inside(file, home) if home is not None else _side_of(file) == side:
                    return f"{frame.filename}:{frame.lineno}"
            raised = raised.__cause__
    return defined


def definition(called: object) -> str:
    """Return `FILE:LINE` where a class or function is defined; its name if that is not known."""
    found = inspect.unwrap(called) if callable(called) else called
    if (code := getattr(found, "__code__", None)) is not None:  # known also when the source is not readable
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        _, number = inspect.getsourcelines(found)  # type: ignore[arg-type]
        return f"{inspect.getsourcefile(found)}:{max(number, 1)}"  # type: ignore[arg-type]
    except (OSError, TypeError):
        return _name(found)


def is_of_finqa(error: BaseException) -> bool:
    """Whether the innermost stack frame outside of libraries is in finqa; True if there is no such frame."""
    sides = (_side_of(Path(frame.filename)) for frame in reversed(traceback.extract_tb(error.__traceback__)))
    return next((side for side in sides if side != "library"), "finqa") == "finqa"


def describe_failure(error: Exception, called: object) -> str:
    """Describe an exception of a call into a component, with `FILE:LINE`. If it is a bug in finqa, say so."""
    place = find_place(error, None, called)
    return f"{describe(error)} ({place}).{_bug_at(place)}".removesuffix(".")


def _bug_at(place: str) -> str:
    """Return the sentence about an error at `FILE:LINE` in finqa itself; empty for other places."""
    return " This is a bug in finqa." if _side_of(Path(place.rpartition(":")[0])) == "finqa" else ""


def _side_of(file: Path) -> Literal["finqa", "library", "user"]:
    """Return to whom a file belongs: finqa with its built-in plugins, a library or Python, or a plugin or the user."""
    plugins = sys.modules.get("finqa_plugins")
    if any(_inside(file, home) for home in plugin_homes):
        return "user"
    if any(_inside(file, home) for home in (_OWN, *map(Path, getattr(plugins, "__path__", ())))):
        return "finqa"
    libraries = {Path(path) for kind in ("stdlib", "purelib", "platlib") for path in [sysconfig.get_path(kind)]}
    return "library" if not file.is_file() or any(_inside(file, library) for library in libraries) else "user"


def _contracts(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base.__module__.startswith("finqa_cli.contracts")]


@functools.cache
def _declared(kind: type, name: str) -> object:
    """Return what a contract of a class declares under a name; None if nothing, or if the class keeps its default."""
    contract = next((base for base in _contracts(kind) if name in vars(base)), None)
    if contract is None or name.startswith("_"):
        return None
    declared = vars(contract)[name]
    return None if inspect.getattr_static(kind, name) is declared else declared


def _check_call(call: Callable[..., Any], own: Any, declared: Any, owner: Owner) -> Callable[..., Any]:
    """Return a call that is checked by its declaration; `own` is the function of the component that it calls."""
    wanted = _returned(declared)
    name: str = declared.__name__

    def failure(error: Exception) -> FinqaError:
        # Log: With the traceback of an exception in a component's code.
        log.debug("a component failed", kind=owner.kind, name=owner.name, method=name, exc_info=error)
        return owner.error(name, f"raised {describe(error)}", find_place(error, owner.home, own))

    def checked(result: object) -> object:
        if wanted is not type(None) and not fits(result, wanted):
            raise owner.error(name, f"returned {_shown(result)}, not {_type_name(wanted)}", definition(own))
        if flaw := find_flaw(result):
            raise owner.error(name, f"returned {flaw}", definition(own))
        if isinstance(result, Sandbox | BaseSession):
            if wrong := wrong_member(result):
                raise owner.error(name, f"returned a {type(result).__name__}: {wrong}", definition(own))
            return guarded(result, owner.kind, owner)
        return result

    async def call_async(*arguments: Any, **named: Any) -> Any:
        try:
            pending = call(*arguments, **named)
            if not inspect.isawaitable(pending):
                raise owner.error(name, "is a plain function, but must be `async def`", definition(own))
            return checked(await pending)
        except owner.allowed:
            raise
        except Exception as error:
            raise failure(error) from error

    def call_plain(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return checked(call(*arguments, **named))
        except owner.allowed:
            raise
        except Exception as error:
            raise failure(error) from error
        finally:
            _warn_of_delay(name, time.perf_counter() - began, own, owner)

    return functools.wraps(own)(call_async if inspect.iscoroutinefunction(declared) else call_plain)


def _warn_of_delay(name: str, seconds: float, own: object, owner: Owner) -> None:
    """Warn once of a method that holds up the other episodes, because it computes or waits in their event loop."""
    key = (owner.kind, owner.name, name)
    if seconds < SLOWEST_CALL_S or key in _slow or key[::2] not in FAULTS or asyncio._get_running_loop() is None:
        return
    _slow.add(key)
    place = definition(own)
    # Log: Once, when a plain method of a component takes long: all episodes wait for it.
    log.warning(f"{owner.kind} {owner.name!r}: {name}() takes {seconds:.1f} s, and no episode continues ({place})")


@functools.cache
def _returned(declared: Callable[..., Any]) -> Any:
    """Return the declared type of the result; Any if contracts do not import its package, such as numpy."""
    try:
        return typing.get_type_hints(declared)["return"]
    except NameError:
        return Any


def fits(value: object, wanted: Any) -> bool:
    """Whether a value has a declared type. Elements of sequences and mappings are checked too, except numbers."""
    kind, parts = get_origin(wanted) or wanted, get_args(wanted)
    if kind in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if kind is Any or not isinstance(kind, type):
        return True
    if not isinstance(value, int | float if kind is float else kind) or (kind is Sequence and isinstance(value, str)):
        return False
    if isinstance(value, Mapping) and len(parts) == 2:
        return all(fits(key, parts[0]) and fits(item, parts[1]) for key, item in value.items())
    if isinstance(value, tuple) and kind is tuple and parts[-1:] != (Ellipsis,):
        return len(value) == len(parts) and all(map(fits, value, parts))
    if isinstance(value, Sequence) and parts and parts[0] not in _NUMBERS:
        return all(fits(item, parts[0]) for item in value)
    return True


def find_flaw(value: object) -> str:
    """Describe a field with a wrong type in a value that an environment returned; empty if there is none.

    A reward that is not finite is a flaw too: it can neither be used for training nor be written to JSON.
    """
    if isinstance(value, Observation):
        return "" if isinstance(value.text, str) else f"an observation whose text is a {type(value.text).__name__}"
    if isinstance(value, Rewards):
        numbers = {**value.components, "total": value.total, "weight": value.weight}
        wrong = {name: number for name, number in numbers.items() if not _is_finite(number)}
        return next(
            (f"a reward that is not a finite number: {name} is {number!r}" for name, number in wrong.items()), ""
        )
    if isinstance(value, Prompt):
        texts = all(isinstance(each, Message) and isinstance(each.content, str) for each in value.messages)
        tools = all(isinstance(each, ToolSpec) for each in value.tools)
        return "" if texts and tools and value.messages else "a prompt without messages of text, or with wrong tools"
    return ""


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _inside(file: Path, home: Path) -> bool:
    return file == home or home in file.parents


def _shown(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _type_name(wanted: Any) -> str:
    return re.sub(r"(\w+\.)+", "", inspect.formatannotation(wanted)).replace(" | ", " or ")


def _name(value: object) -> str:
    return str(getattr(value, "__name__", type(value).__name__))
