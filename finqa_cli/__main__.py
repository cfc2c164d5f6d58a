"""Entry point of `finqa` and `python -m finqa_cli`; answers completion requests before anything else is imported."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

from finqa_cli import completion

_STATUSES: dict[Any, int] = {
    128 + signal.SIGTERM: signal.SIGTERM,
    128 + signal.SIGHUP: signal.SIGHUP,
    85: signal.SIGUSR1,
}
"""Signals by the exit status with which they end a command."""

_AGAIN_S = 0.02
"""Seconds after which an ignored signal is sent again; by then the destructor has usually ended."""


def main() -> int:
    """Complete a word or run the command line, and return the exit status."""
    if completion.is_asked():
        return completion.main(_make_index)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _end)
    sys.unraisablehook = _send_again
    status = 1
    try:
        from finqa_cli.app import main as run

        status = run()
        return status
    except KeyboardInterrupt:  # while the modules are imported, which takes half a second
        print("Interrupted.", file=sys.stderr)
        return 130
    finally:
        gc.freeze()  # otherwise the ending interpreter searches all objects of PyTorch for cycles, for seconds
        if status in _STATUSES or status == 128 + signal.SIGINT:
            _leave_threads(status)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _leave_threads(status: int) -> None:
    """End the process of a stopped command at once if threads still run, such as one that loads a model.

    The interpreter would wait for them. Functions registered with `atexit` are called as usual.
    """
    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it is closed, or its reader ended
            stream.flush()
    os._exit(status)


def _send_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Send a signal again whose exception Python ignored, because a destructor or a callback ran when it came."""
    error = unraisable.exc_value
    if isinstance(error, KeyboardInterrupt):
        number: int | None = signal.SIGINT
    else:
        number = _STATUSES.get(error.code) if isinstance(error, SystemExit) else None
    if number is None:
        sys.__unraisablehook__(unraisable)
        return
    timer = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def _make_index() -> dict[str, Any]:
    from finqa_cli.completion_index import index

    return index()


if __name__ == "__main__":
    sys.exit(main())
