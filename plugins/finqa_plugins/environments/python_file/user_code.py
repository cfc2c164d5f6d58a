"""Imports a user's class, factory or functions, and finds the parts of an environment in it.

Functions whose names do not begin with an underscore are tools, except these:

    tasks()    yields the tasks, each a mapping with a `prompt`; its other keys can be parameters of the functions below
    reset()    called before the first turn; a text that it returns is added to the prompt
    answer()   takes an answer in plain text; None ends the episode, a text is the reply to it
    reward()   returns the verdict at the end; or `reward` is a number that tools change
    expert()   yields the calls of a perfect policy
    close()    called at the end
    done       true once the episode is over

`several_calls = True` lets one turn call several tools.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.extend.plugin_calls import definition, describe, find_place, plugin_homes
from finqa_plugins.environments.python_file.tool_methods import ToolMethod, make_tool

RESERVED = ("tasks", "reset", "answer", "reward", "expert", "close", "done", "explanation")
FACTS = ("task", "seed")
"""Parameters that are filled in, besides the values of the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """The parts of an environment in a user's code.

    Attributes:
        name: Name of the environment, as the user gave it.
        file: The file of the code.
        about: The docstring of the class or module: the system message.
        make: Makes the object of one episode; its parameters are values of the task.
        tasks: Yields the tasks.
        methods: Functions and methods by name, unbound.
        tools: The tools by name.
        several_calls: Whether one turn may call several tools.
    """

    name: str
    file: Path
    about: str
    make: Callable[..., Any]
    tasks: Callable[..., Any]
    methods: Mapping[str, Any]
    tools: Mapping[str, ToolMethod]
    several_calls: bool

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.file.read_bytes()).hexdigest()

    def has(self, name: str) -> bool:
        """Whether the code defines a part such as `reset`."""
        return callable(self.methods.get(name))

    @property
    def judges_answers(self) -> bool:
        """Whether `reward` has a parameter for the policy's answer in plain text."""
        return self.has("reward") and "answer" in inspect.signature(self.methods["reward"]).parameters

    @property
    def takes_answers(self) -> bool:
        """Whether a turn without a call is an answer."""
        return self.has("answer") or self.judges_answers


def load(source: str, attribute: str = "") -> UserCode:
    """Import a file or module and find the environment in it.

    Args:
        source: A file, or `module:attribute`.
        attribute: Which class or function of a file; empty: its only public class, else its functions.

    Raises:
        ConfigError: The file does not exist, cannot be imported, or has no environment; the message names the line.
    """
    module, file = _import(source)
    plugin_homes.add(file)
    wanted = attribute or ("" if source.endswith(".py") else source.partition(":")[2])
    target = _find(module, wanted, file)
    if isinstance(target, ModuleType):
        return _of_functions(source, target, file)
    return _of_class(source, target, module, file)


def fill(function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a call of a function with the values for its parameters; other values are left out."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return partial(function, **values)
    return partial(function, **{name: value for name, value in values.items() if name in parameters})


def check_values(code: UserCode, tasks: Sequence[tuple[str, Set[str]]], arguments: Set[str]) -> None:
    """Check that each task has a value for every parameter that is filled in and has no default.

    Args:
        code: The environment.
        tasks: Id and keys of each task.
        arguments: Names of further values, which every task has.

    Raises:
        ConfigError: A value is missing; the message names parameter, line, and the keys of the task.
    """
    filled: dict[str, Any] = {"the constructor": code.make}
    filled |= {f"{name}()": code.methods[name] for name in ("reset", "expert") if code.has(name)}
    if code.make.__module__ == __name__ and code.has("reward"):  # functions without a class get values of the task too
        filled["reward()"] = code.methods["reward"]
    for name, function in filled.items():
        given = {*arguments, *FACTS, *({"answer"} if name == "reward()" else ())}
        for parameter in [each for each in _required(function) if each not in given]:
            lacking = next((each for each in tasks if parameter not in each[1]), None)
            if lacking is not None:
                constructor = getattr(function, "__init__", None) if isinstance(function, type) else None
                place = definition(constructor if inspect.isfunction(constructor) else function)
                raise ConfigError(
                    f"{name} of {code.name} needs {parameter!r} ({place}), but task {lacking[0]!r} has only: "
                    f"{', '.join(sorted(lacking[1]))}.",
                    remedy=f"give each task {parameter!r}, or give the parameter a default in {place}",
                )


def _required(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the parameters without a default that can be passed by name."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for number, (name, each) in enumerate(inspect.signature(function).parameters.items()):
        if each.kind in named and each.default is each.empty and not (number == 0 and name in ("self", "cls")):
            yield name


def _import(source: str) -> tuple[ModuleType, Path]:
    try:
        with redirect_stdout(sys.stderr):  # stdout belongs to the command, which may print JSON there
            return _import_file(Path(source)) if source.endswith(".py") else _import_module(source.partition(":")[0])
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        place = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else ""
        place = place or find_place(error, None, None)
        raise ConfigError(
            f"Environment {source} cannot be imported: {describe(error)}{f' ({place})' if place else ''}.",
            remedy=f"correct {place or source}",
        ) from error


def _import_file(path: Path) -> tuple[ModuleType, Path]:
    file = path.expanduser().absolute()
    _make_importable(file.parent)
    name = f"finqa_environment_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # type hints are looked up there
    specification.loader.exec_module(module)
    return module, file


def _import_module(name: str) -> tuple[ModuleType, Path]:
    _make_importable(Path.cwd())
    module = importlib.import_module(name)
    return module, Path(inspect.getsourcefile(module) or "")


def _make_importable(folder: Path) -> None:
    """Let the code import modules in the same folder; installed packages of the same name have priority."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _find(module: ModuleType, attribute: str, file: Path) -> Any:
    if attribute:
        found = getattr(module, attribute, None)
        if not callable(found):
            public = [name for name, _ in _own(module)]
            raise ConfigError(
                f"{file} has no class or function {attribute!r}; it has: {', '.join(public) or 'none'}.",
                remedy="--set environment.options.attribute=NAME",
            )
        return found
    classes = [value for _, value in _own(module) if isinstance(value, type) and hasattr(value, "reward")]
    if len(classes) > 1:
        names = ", ".join(each.__name__ for each in classes)
        raise ConfigError(
            f"{file} has several environments: {names}.",
            remedy=f"--set environment.options.attribute={classes[0].__name__}",
        )
    return classes[0] if classes else module


def _own(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Public classes and functions that a module defines itself."""
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__ and callable(value):
            yield name, value


def _of_class(source: str, target: Any, module: ModuleType, file: Path) -> UserCode:
    """The code of a class, or of a function that makes objects; its tasks may be a function of the module."""
    shaped = target if isinstance(target, type) else _returned(target)
    methods = {name: inspect.unwrap(value) for name, value in _members(shaped)}
    tasks = getattr(shaped, "tasks", None) or getattr(module, "tasks", None)
    _check(source, {**methods, **({"tasks": tasks} if tasks else {})}, definition(target))
    tools = {name: make_tool(name, value) for name, value in methods.items() if _is_tool(name, value)}
    about = inspect.cleandoc(target.__doc__ or "")
    assert tasks is not None
    return UserCode(
        name=source,
        file=file,
        about=about,
        make=target,
        tasks=tasks,
        methods=methods,
        tools=tools,
        several_calls=bool(getattr(shaped, "several_calls", False)),
    )


def _returned(function: Callable[..., Any]) -> type:
    """The class in the return annotation of a factory."""
    made = typing.get_type_hints(function).get("return")
    if not isinstance(made, type):
        place = definition(function)
        raise ConfigError(
            f"{place}: {function.__name__}() has no return type.",
            remedy=f"add the return type: def {function.__name__}(...) -> CLASS",
        )
    return made


def _of_functions(source: str, module: ModuleType, file: Path) -> UserCode:
    """The code of a module without a class: its functions, which get the values of the task by parameter name."""
    methods = dict(_own(module))
    _check(source, methods, f"{file}:1")
    others = [methods[name] for name in RESERVED if name in methods]
    filled = {parameter for function in others for parameter in inspect.signature(function).parameters}
    hidden = {*FACTS, *(filled - {"answer"})}
    tools = {
        name: make_tool(name, value, hidden=hidden)
        for name, value in methods.items()
        if _is_tool(name, value) and inspect.isfunction(value)
    }

    def make(**values: Any) -> Any:
        bound = {name: _bound(value, values, answered=name in ("answer", "reward")) for name, value in methods.items()}
        return SimpleNamespace(done=False, **bound)

    about = inspect.cleandoc(module.__doc__ or "")
    return UserCode(
        name=source,
        file=file,
        about=about,
        make=make,
        tasks=methods["tasks"],
        methods=methods,
        tools=tools,
        several_calls=bool(getattr(module, "several_calls", False)),
    )


def _bound(function: Callable[..., Any], values: Mapping[str, Any], *, answered: bool) -> Callable[..., Any]:
    """A function with the values of the task; with `answered` it keeps the parameter `answer`."""
    parameters = inspect.signature(function).parameters
    kept = {"answer"} if answered else set()
    return partial(function, **{name: value for name, value in values.items() if name in parameters.keys() - kept})


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    for base in reversed(kind.__mro__[:-1]):
        for name, value in vars(base).items():
            plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if not name.startswith("_"):
                yield name, plain


def _is_tool(name: str, value: Any) -> bool:
    return inspect.isfunction(value) and name not in RESERVED


def _check(source: str, methods: Mapping[str, Any], place: str) -> None:
    missing = [name for name in ("tasks", "reward") if name not in methods]
    if missing:
        raise ConfigError(
            f"Environment {source} has no {' and no '.join(missing)} ({place}).",
            remedy="write tasks(), which yields mappings with a prompt, and reward(), which returns a number",
        )
