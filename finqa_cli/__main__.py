"""Entry point of `finqa` and `python -m finqa_cli`; answers completion requests before anything else is imported."""

from __future__ import annotations

import gc
import sys
from typing import Any

from finqa_cli import completion


def main() -> int:
    """Complete a word or run the command line, and return the exit status."""
    if completion.is_asked():
        return completion.main(_make_index)
    from finqa_cli.app import main as run

    try:
        return run()
    finally:
        gc.freeze()  # otherwise the ending interpreter searches all objects of PyTorch for cycles, for seconds


def _make_index() -> dict[str, Any]:
    from finqa_cli.completion_index import index

    return index()


if __name__ == "__main__":
    sys.exit(main())
