"""Checks of a component against the contract of its kind: the parameters of its methods, and the kind's test suite."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from finqa_cli.deletion import temporary_folder
from finqa_cli.errors import MissingDependencyError
from finqa_cli.extend.plugin_calls import definition
from finqa_cli.extend.registry import registry

_NEEDED = ("pytest", "pytest_asyncio", "pytest_timeout", "hypothesis")
_LONGEST = 600
"""Most characters of a message, because compared values may be long."""


_PLACE = re.compile(r"\.py:\d+")
_OWN_ERROR = re.compile(r"\Afinqa_cli\.errors\.\w+: ")


class CheckedKind(StrEnum):
    """Kinds with a test suite, which a plugin has (hook `contract_suite`)."""

    ENVIRONMENT = "environment"
    REWARD = "reward"
    CALL_FORMAT = "call_format"
    OPTIMIZER = "optimizer"
    TRACKER = "tracker"
    SANDBOX = "sandbox"
    ENGINE = "engine"
    CHAT_ENGINE = "chat_engine"
    CODEC = "codec"
    LEARNER = "learner"


def registered_kind(kind: str) -> str:
    """Return the kind under which components of a checked kind are registered: `engine` for `chat_engine`."""
    return CheckedKind.ENGINE.value if kind == CheckedKind.CHAT_ENGINE else kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Result of the check of one rule of a contract.

    Attributes:
        name: Description of the rule.
        status: `passed`, `failed`, or `skipped` if the rule does not apply.
        detail: What went wrong, with file and line, or why the check was skipped.
    """

    name: str
    status: Literal["passed", "failed", "skipped"]
    detail: str = ""


def check_parameters(component: object) -> list[Promise]:
    """Check that each method accepts the arguments of its contract; return a failed promise for each that does not."""
    found = []
    for contract in component.__class__.__mro__:
        if not contract.__module__.startswith("finqa_cli.contracts"):
            continue
        for name, declared in vars(contract).items():
            own = getattr(component.__class__, name, None)
            if name.startswith("_") or not inspect.isfunction(declared) or not callable(own):
                continue
            own = inspect.unwrap(own)
            if own is not declared and (problem := _problem(own, declared)):
                written = f"{name}{inspect.signature(own)} at {definition(own)}"
                detail = f"{written}: {problem}; finqa passes {_passed(declared)}"
                found.append(
                    Promise(name=f"{name} accepts the arguments of its contract", status="failed", detail=detail)
                )
    return found


def run_suite(kind: str, fixtures: Mapping[str, Callable[[Path], object]]) -> list[Promise]:
    """Run the tests of a kind in this process.

    Args:
        kind: One of `CheckedKind`.
        fixtures: Name of a fixture of the suite, such as `subject` -> function that makes it, called with an empty
            folder.

    Raises:
        MissingDependencyError: pytest, one of its plugins or the suite is not installed.
    """
    suite = registry().first("contract_suite", str, kind=kind)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if suite is None or missing:
        needed = ", ".join(missing) or f"a plugin with the suite {kind}"
        raise MissingDependencyError(f"The suites of contracts need {needed}.", remedy="pip install 'finqa[kit]'")
    import pytest

    observer = _Observer()
    provided = type(
        "Fixtures", (), {name: pytest.fixture(name=name)(_fixture(make)) for name, make in fixtures.items()}
    )
    with temporary_folder("finqa-check-") as folder, contextlib.redirect_stdout(io.StringIO()):
        settings = Path(folder, "pytest.ini")
        settings.write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
        arguments = ["-c", str(settings), "--rootdir", str(folder), "--basetemp", str(Path(folder, "tests"))]
        arguments += ["-p", "no:cacheprovider", "-p", "no:terminal", "-W", "ignore", "--noconftest", "--pyargs"]
        pytest.main([*arguments, suite], plugins=[observer, provided()])
    return observer.promises()


def with_place(promise: Promise, place: str) -> Promise:
    """Return a promise whose detail names a file and a line: if it failed and names none, those of the component."""
    if promise.status != "failed" or _PLACE.search(promise.detail):
        return promise
    return replace(promise, detail=f"{promise.detail} ({place})")


def _problem(own: Callable[..., Any], declared: Callable[..., Any]) -> str:
    parameters = inspect.signature(declared).parameters.values()
    named = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    try:
        inspect.signature(own).bind(*(None for each in parameters if each.name not in named), **dict.fromkeys(named))
    except TypeError as error:
        return str(error)
    return ""


def _passed(declared: Callable[..., Any]) -> str:
    parameters = list(inspect.signature(declared).parameters.values())[1:]
    shown = [f"{each.name}=..." if each.kind is each.KEYWORD_ONLY else each.name for each in parameters]
    return f"({', '.join(shown)})"


class _Observer:
    """A pytest plugin that collects outcomes."""

    def __init__(self) -> None:
        self._outcomes: dict[str, list[Promise]] = {}

    def pytest_collectreport(self, report: Any) -> None:
        """Record a suite that could not be collected."""
        if report.failed:
            self._add("the suite can be read", "failed", str(report.longrepr))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record the outcome of each test, and of a failed set-up."""
        name = report.nodeid.rpartition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ")
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._add(name, "failed", crash.message if crash is not None else str(report.longrepr))
        elif report.skipped:
            self._add(name, "skipped", str(report.longrepr[2]).removeprefix("Skipped: "))
        elif report.when == "call":
            self._add(name, "passed", "")

    def promises(self) -> list[Promise]:
        """Return one promise per test function: the first failed case, else a passed one, else a skipped one."""
        order = ("failed", "passed", "skipped")
        return [min(cases, key=lambda case: order.index(case.status)) for cases in self._outcomes.values()]

    def _add(self, name: str, status: Literal["passed", "failed", "skipped"], detail: str) -> None:
        lines = [line for line in detail.splitlines() if line.strip()]
        told = [line for line in lines if not line.startswith((" +", "assert "))]
        shown = _OWN_ERROR.sub("", " ".join(told or lines[:1]))[:_LONGEST]
        self._outcomes.setdefault(name, []).append(Promise(name=name, status=status, detail=shown))


def _fixture(make: Callable[[Path], object]) -> Callable[..., object]:
    def made(_: object, tmp_path: Path) -> object:
        return make(tmp_path)

    return made
