"""Calls into environments and their sessions: what is wrong there is a fault of one episode, with file and line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from finqa_cli.errors import EnvironmentFault, FinqaError
from finqa_cli.extend.plugin_calls import definition, describe_failure, describe_value, find_flaw

log = structlog.get_logger(__name__)
Result = TypeVar("Result")


async def call_checked(call: Callable[[], Any], method: Callable[..., Any], wanted: Any) -> Any:
    """Call a method of an environment or session, await what it returns where that is due, and check the result.

    Args:
        call: Calls the method.
        method: The method, which messages name.
        wanted: Class, or union of classes, that the result is of.

    Raises:
        EnvironmentFault: It raised an exception that is no `FinqaError`, or returned what its contract does not allow.
    """
    name = method.__qualname__
    try:
        result = call()
        if inspect.isawaitable(result):
            result = await result
    except FinqaError:
        raise
    except Exception as error:
        log.debug("the environment failed", method=name, exc_info=True)
        raise EnvironmentFault(f"{name}() raised {describe_failure(error, method)}") from error
    if not isinstance(result, wanted):
        raise EnvironmentFault(f"{name}(): {describe_value(result, wanted, method)}")
    if flaw := find_flaw(result):
        raise EnvironmentFault(f"{name}() returned {flaw} ({definition(method)})")
    return result
