"""Things that happen at a moment of a command: a signal, a failure that passes."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest


def after(place: str, happens: Callable[[], object]) -> Callable[[], AbstractContextManager[None]]:
    """Let something happen once, right after a function of the product was called for the first time.

    Args:
        place: `module:Class.method` or `module:function`.
        happens: Is called in the thread of the function.
    """

    @contextmanager
    def during() -> Iterator[None]:
        module, _, path = place.partition(":")
        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        function = getattr(owner, name)
        pending = [happens]

        def called(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            if pending:
                pending.pop()()
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, called)
            yield

    return during


def interrupted(place: str) -> Callable[[], AbstractContextManager[None]]:
    """Press Ctrl-C twice, which ends a command at once, right after a function was called for the first time."""
    return after(place, lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
