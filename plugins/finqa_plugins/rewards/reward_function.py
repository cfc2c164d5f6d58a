"""A reward that the user wrote: `compute_score(data_source, solution_str, ground_truth, extra_info=None)`.

The signature is that of verl's `custom_reward_function`. The function returns a number, or a mapping with `score` and
further numbers, which become the parts of the reward; texts in it are not logged, as in verl. It is called in the
process of the run, for one answer at a time: a slow function delays all other episodes.
Its prints go to stderr.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import Field

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.errors import CodeFault, ConfigError
from finqa_cli.extend.plugin_calls import definition, find_place, plugin_homes
from finqa_cli.types import Rewards
from finqa_plugins.rewards.spec import Strict

DEFAULT_NAME = "compute_score"
REMEDY = "--set reward.options.function=path/to/file.py:compute_score"


class FunctionConfig(Strict):
    """Options of the function reward."""

    function: str = Field(
        min_length=1,
        description="`path/to/file.py:name` or `package.module:name`; the name is compute_score if left out.",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Further keyword arguments of every call.")


class Function(Reward):
    """Calls the user's function. Exceptions and results that are not numbers are faults, never a reward of 0."""

    def __init__(self, config: FunctionConfig) -> None:
        """Import the function.

        Raises:
            ConfigError: The function cannot be imported, or does not accept verl's arguments.
        """
        self.config = config
        self._name = config.function
        self._function, file = _load(config)
        self._sha256 = None
        if file.is_file():
            self._sha256 = _sha256(file)
            plugin_homes.add(file)

    def score(self, request: RewardRequest) -> Rewards:
        """Return the result of the function.

        Raises:
            CodeFault: The function raised an exception, or returned something else than finite numbers.
        """
        try:
            with contextlib.redirect_stdout(sys.stderr):
                result = self._function(
                    data_source=request.data_source,
                    solution_str=request.solution,
                    ground_truth=request.truth,
                    extra_info=dict(request.extra_info),
                    **self.config.kwargs,
                )
        except (Exception, SystemExit) as error:
            place = find_place(error, None, self._function)
            raise self._fault(f"raised {type(error).__name__}: {_line(error)}", place) from error
        if not isinstance(result, Mapping):
            return Rewards(total=self._number("its result", result))
        if "score" not in result:
            raise self._fault("returned a mapping without 'score'")
        parts = {str(key): value for key, value in result.items() if key != "score" and not isinstance(value, str)}
        return Rewards(
            total=self._number("score", result["score"]),
            components={name: self._number(name, value) for name, value in parts.items()},
        )

    def spec(self) -> dict[str, Any]:
        """Return the options and the sha256 of the function's file, because a path alone does not identify it."""
        return {**self.config.model_dump(mode="json"), "sha256": self._sha256}

    def _number(self, what: str, value: object) -> float:
        if not isinstance(value, Real):
            raise self._fault(f"returned no number: {what} is of type {type(value).__name__}")
        try:
            number = float(value)
        except OverflowError:  # an integer larger than every float
            number = math.inf
        if not math.isfinite(number):
            raise self._fault(f"returned no finite number: {what} is {number}")
        return number

    def _fault(self, reason: str, place: str = "") -> CodeFault:
        place = place or definition(self._function)
        return CodeFault(f"The reward function {self._name} {reason} ({place}).", remedy=f"correct {place}")


def _load(config: FunctionConfig) -> tuple[Callable[..., object], Path]:
    """Return the function and the path of its module, which is not a file for built-in modules and archives."""
    place, colon, name = config.function.rpartition(":")
    if not colon or place == "" or name.endswith(".py") or "/" in name or "\\" in name:
        place, name = config.function, DEFAULT_NAME
    with contextlib.redirect_stdout(sys.stderr):
        module = _module(place)
    function = getattr(module, name, None)
    if function is None:
        raise ConfigError(f"{place} has no function {name!r}.", remedy=REMEDY)
    if not callable(function):
        raise ConfigError(f"{name!r} in {place} is a {type(function).__name__}, not a function.", remedy=REMEDY)
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{name!r} in {place} is async; rewards are called without await.", remedy="use plain def")
    _check_arguments(function, place, name, config.kwargs)
    return function, Path(getattr(module, "__file__", None) or "")


def _check_arguments(function: Callable[..., object], place: str, name: str, extra: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have no signature; the first call will show an error
        return
    try:
        signature.bind(data_source="", solution_str="", ground_truth="", extra_info={}, **extra)
    except TypeError as error:
        raise ConfigError(
            f"{name!r} in {place} cannot be called as {DEFAULT_NAME}(data_source, solution_str, ground_truth, "
            f"extra_info{''.join(f', {key}' for key in extra)}): {error}.",
            remedy=f"give {name} these arguments, or **kwargs",
        ) from error


def _module(place: str) -> ModuleType:
    try:
        return _from_file(Path(place).expanduser()) if place.endswith(".py") else importlib.import_module(place)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        remedy = REMEDY if isinstance(error, ModuleNotFoundError) else f"correct {place}"
        reason = f"{type(error).__name__}: {_line(error)}"
        raise ConfigError(
            f"The reward function's module {place} cannot be imported ({reason}).", remedy=remedy
        ) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"There is no file {path} with a reward function.", remedy=REMEDY)
    resolved = path.resolve()
    digest = hashlib.sha256(f"{resolved}\n{_sha256(resolved)}".encode()).hexdigest()[:12]
    name = f"finqa_reward_{digest}"  # a unique name, so that a file json.py hides no other module
    if loaded := sys.modules.get(name):  # import-time work, such as loading a model, is done once
        return loaded
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None, "its name ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        # Not `exec_module`: a cached .pyc of the same second and size may be that of another source.
        exec(compile(resolved.read_bytes(), str(resolved), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or "no message"
