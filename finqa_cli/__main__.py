"""Entry point of `finqa` and `python -m finqa_cli`; answers completion requests before anything else is imported."""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

from finqa_cli import completion


def main() -> int:
    """Complete a word or run the command line, and return the exit status."""
    if completion.is_asked():
        return completion.main(_make_index)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _end)
    try:
        from finqa_cli.app import main as run

        return run()
    except KeyboardInterrupt:  # while the modules are imported, which takes half a second
        print("Interrupted.", file=sys.stderr)
        return 130
    finally:
        gc.freeze()  # otherwise the ending interpreter searches all objects of PyTorch for cycles, for seconds


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _make_index() -> dict[str, Any]:
    from finqa_cli.completion_index import index

    return index()


if __name__ == "__main__":
    sys.exit(main())
