"""Serves the ASGI app of an OpenEnv environment with uvicorn: `python serve_app.py FOLDERS APP OPTION...`.

Any Python with uvicorn runs this file, also one without finqa. FOLDERS, separated as PATH is, come first on the path of
imports. The process exits with status 78 if the app cannot be imported.

OpenEnv imports gradio for a web interface that is off by default; it takes more than half of the start-up time. So the
first try is without gradio. If it fails in any way, the process starts again with all imports as they are: an app may
treat a failed import as a sign of something else.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import traceback

EX_CONFIG = 78
COMPLETE = "FINQA_COMPLETE_IMPORTS"
"""Set in the second try."""


def main() -> None:
    """Import the app, then become uvicorn."""
    complete = bool(os.environ.get("ENABLE_WEB_INTERFACE") or os.environ.pop(COMPLETE, ""))
    folders, app, *options = sys.argv[1:]
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  few imports: each start pays for them
    paths = [path for path in sys.path if path != own]
    sys.path[:] = [*filter(None, folders.split(os.pathsep)), *paths]
    sys.argv = ["uvicorn", app, *options]
    if not complete:
        sys.modules["gradio"] = None  # type: ignore[assignment]  # so importing it fails
    try:
        importlib.import_module(app.partition(":")[0])
    except BaseException as error:
        if not complete:
            os.environ[COMPLETE] = "1"
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        traceback.print_exc()
        print(f"{app} cannot be imported: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(EX_CONFIG)
    runpy.run_module("uvicorn", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
