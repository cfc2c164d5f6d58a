"""Checked calls of plugin components: their exceptions and results are attributed to the plugin.

A component of a plugin that is not part of finqa gets a subclass of its class, in which each method of its contract is
checked. An exception that is not a `FinqaError`, or a value of another type than the contract declares, becomes an
error that names plugin, component, method, file and line. If `FAULTS` has a fault for the method, that fault is raised:
only one attempt fails, and the run continues.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
import sysconfig
import traceback
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from finqa_cli.contracts import BaseSession, CallError, Sandbox
from finqa_cli.errors import CodeFault, EngineError, EnvironmentFault, FinqaError, PluginError, SandboxError
from finqa_cli.types import Message, Observation, Prompt, Rewards, ToolSpec

FAULTS: Mapping[tuple[str, str], type[FinqaError]] = {
    **{("environment", name): EnvironmentFault for name in ("open", "prompt", "step", "reply", "grade")},
    **{("environment", name): EnvironmentFault for name in ("demonstrate", "demonstrate_task")},
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

ALLOWED = (FinqaError, CallError)
"""Exceptions that contracts allow; they are passed on unchanged."""

plugin_homes: set[Path] = set()
"""Packages, modules and files of the loaded plugins that are not part of finqa."""

_NUMBERS = (int, float, bool, complex)
_OWN = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The component to which calls are attributed.

    Attributes:
        kind: Kind of the component.
        name: Name of the component.
        plugin: Name of the plugin in messages, such as `plugin 'acme' of acme-finqa`.
        home: Package, module or file of the plugin; stack frames inside it are attributed to the plugin.
    """

    kind: str
    name: str
    plugin: str
    home: Path

    def error(self, call: str, what: str, place: str) -> FinqaError:
        """Return the error of a failed call.

        Args:
            call: Name of the method.
            what: What is wrong with the call, as the end of a sentence.
            place: `FILE:LINE`.
        """
        kind = FAULTS.get((self.kind, call), PluginError)
        remedy = f"correct {place}, or choose another {self.kind}"
        return kind(f"{self.kind} {self.name!r} ({self.plugin}): {call}() {what} ({place}).", remedy=remedy)


def check_calls(built: object, owner: Owner, contracts: Sequence[type]) -> None:
    """Check each call to a component's own methods from now on, by the declarations of its contracts.

    Args:
        built: The component; its class is replaced by a subclass with the same name.
        owner: The component to which failed calls are attributed.
        contracts: Base classes of the kind; those from which the component does not derive are ignored.
    """
    kind = type(built)
    checked: dict[str, Any] = {}
    for contract in (each for base in contracts if isinstance(built, base) for each in reversed(base.__mro__)):
        for name, declared in vars(contract).items():
            own = getattr(kind, name, None)
            if name.startswith("_") or own is declared:  # private, or the default of the contract itself
                continue
            if inspect.isfunction(declared) and callable(own):
                checked[name] = _checked(own, declared, owner)
            elif isinstance(declared, property) and isinstance(own, property) and own.fget and declared.fget:
                checked[name] = property(_checked(own.fget, declared.fget, owner))
    if checked:
        place = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        built.__class__ = type(kind.__name__, (kind,), {**place, **checked})


def wrong_member(built: object, contracts: Sequence[type]) -> str:
    """Describe the first method of a component that is not a method, with `FILE:LINE`; empty if there is none.

    Args:
        built: The component.
        contracts: Base classes of its kind; those from which it does not derive are ignored.
    """
    for contract in (each for base in contracts if isinstance(built, base) for each in base.__mro__):
        for name, declared in vars(contract).items():
            own = inspect.getattr_static(built, name, None)
            method = isinstance(own, (staticmethod, classmethod)) or callable(own)
            if inspect.isfunction(declared) and not name.startswith("_") and not method:
                what = "a property" if isinstance(own, property) else _shown(own)
                return f"its {name} is {what}, but must be a method ({definition(type(built))})"
    return ""


def construct(target: Callable[..., Any], arguments: Sequence[object], owner: Owner) -> Any:
    """Call the class or function that makes a component. Exceptions are converted as those of a checked call."""
    try:
        return target(*arguments)
    except (*ALLOWED, ImportError):
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
        home: Package or file of the plugin; None: any code that is neither of finqa nor of a library.
        called: Class, function or method that was called.
    """
    raised: BaseException | None = error
    while raised is not None:  # a coroutine converts StopIteration to another error without its frames
        for frame in reversed(traceback.extract_tb(raised.__traceback__)):
            file = Path(frame.filename)
            if _inside(file, home) if home is not None else _side_of(file) == "user":
                return f"{frame.filename}:{frame.lineno}"
        raised = raised.__cause__
    return definition(called)


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
    if is_of_finqa(error) and _side_of(Path(definition(called).rpartition(":")[0])) == "finqa":
        return f"{describe(error)} ({find_place(error, _OWN.parent, called)}). This is a bug in finqa."
    return f"{describe(error)} ({find_place(error, None, called)})"


def describe_value(value: object, wanted: type, called: object) -> str:
    """Describe an invalid return value of a call into a component, with `FILE:LINE`."""
    return f"it returned {_shown(value)}, not {_type_name(wanted)} ({definition(called)})"


def _side_of(file: Path) -> Literal["finqa", "library", "user"]:
    """Return to whom a file belongs: finqa with its built-in plugins, a library or Python, or a plugin or the user."""
    plugins = sys.modules.get("finqa_plugins")
    if any(_inside(file, home) for home in plugin_homes):
        return "user"
    if any(_inside(file, home) for home in (_OWN, *map(Path, getattr(plugins, "__path__", ())))):
        return "finqa"
    libraries = {Path(path) for kind in ("stdlib", "purelib", "platlib") for path in [sysconfig.get_path(kind)]}
    return "library" if not file.is_file() or any(_inside(file, library) for library in libraries) else "user"


def _checked(own: Callable[..., Any], declared: Callable[..., Any], owner: Owner) -> Callable[..., Any]:
    wanted = _returned(declared)
    name = declared.__name__

    def passed_on(error: Exception) -> FinqaError:
        return owner.error(name, f"raised {describe(error)}", find_place(error, owner.home, own))

    def checked_result(result: object) -> object:
        if wanted is not type(None) and not fits(result, wanted):
            what = f"returned {_shown(result)}, not {_type_name(wanted)}"
            raise owner.error(name, what, definition(own))
        if flaw := find_flaw(result):
            raise owner.error(name, f"returned {flaw}", definition(own))
        if isinstance(result, Sandbox | BaseSession):
            if wrong := wrong_member(result, _bases(result)):
                raise owner.error(name, f"returned a {type(result).__name__}: {wrong}", definition(own))
            check_calls(result, owner, _bases(result))
        return result

    if inspect.iscoroutinefunction(declared):

        @functools.wraps(own)
        async def call_async(*arguments: Any, **named: Any) -> Any:
            try:
                pending = own(*arguments, **named)
                if not inspect.isawaitable(pending):
                    raise owner.error(name, "is a plain function, but must be `async def`", definition(own))
                result = await pending
            except ALLOWED:
                raise
            except Exception as error:
                raise passed_on(error) from error
            return checked_result(result)

        return call_async

    @functools.wraps(own)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            result = own(*arguments, **named)
        except ALLOWED:
            raise
        except Exception as error:
            raise passed_on(error) from error
        return checked_result(result)

    return call


def _returned(declared: Callable[..., Any]) -> Any:
    """Return the declared type of the result; Any if contracts do not import its package, such as numpy."""
    try:
        return eval(declared.__annotations__.get("return", "object"), vars(sys.modules[declared.__module__]))
    except NameError:
        return Any


def fits(value: object, wanted: Any) -> bool:
    """Whether a value has a declared type. Elements of sequences and mappings are checked too, except numbers."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if wanted is Any or isinstance(wanted, typing.TypeVar):
        return True
    if origin is Literal:
        return value in parts
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if wanted is None or wanted is type(None):
        return value is None
    if wanted is float:
        return isinstance(value, int | float)
    kind = origin or wanted
    if not isinstance(kind, type):
        return True
    if not isinstance(value, kind) or (kind is not str and isinstance(value, str) and issubclass(kind, Sequence)):
        return False
    if issubclass(kind, Mapping) and len(parts) == 2:
        assert isinstance(value, Mapping)
        return all(fits(key, parts[0]) and fits(item, parts[1]) for key, item in value.items())
    if kind is tuple and parts and parts[-1] is not Ellipsis:
        assert isinstance(value, tuple)
        return len(value) == len(parts) and all(map(fits, value, parts))
    if issubclass(kind, Sequence) and parts and parts[0] not in _NUMBERS:
        assert isinstance(value, Sequence)
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


def _bases(made: Sandbox | BaseSession) -> list[type]:
    return [base for base in type(made).__mro__ if base.__module__.startswith("finqa_cli.contracts")]


def _inside(file: Path, home: Path) -> bool:
    return file == home or home in file.parents


def _shown(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _type_name(wanted: Any) -> str:
    if get_origin(wanted) in (Union, types.UnionType):
        return " or ".join(_type_name(part) for part in get_args(wanted))
    if isinstance(wanted, type) and not get_args(wanted):
        return "None" if wanted is type(None) else wanted.__name__
    return re.sub(r"(\w+\.)+", "", str(wanted))


def _name(value: object) -> str:
    return str(getattr(value, "__name__", type(value).__name__))
