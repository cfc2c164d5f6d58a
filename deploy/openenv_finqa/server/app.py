"""The FinQA environment as OpenEnv starts it: `uvicorn server.app:app`, `uv run server` or `python -m server.app`.

The data is, in this order: FINQA_SNAPSHOT, a folder that `finqa snapshot build` made; FINQA_DATA_PATH, a folder in the
layout of OpenEnv's FinQA data, compiled at start-up; the data set that finqa brings along. HOST, PORT, FINQA_MAX_STEPS
and FINQA_SESSION_TIMEOUT are those of the server itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots
from finqa_cli.errors import FinqaError
from finqa_plugins.environments.openenv_finqa.server import run_server as process


def snapshot_folder(environment: Mapping[str, str]) -> Path:
    """The compiled data to serve.

    Raises:
        FinqaError: The data is missing or malformed, or cannot be compiled.
    """
    if compiled := environment.get("FINQA_SNAPSHOT"):
        return Path(compiled)
    store = LocalSnapshots(Path(environment.get("FINQA_HOME") or tempfile.mkdtemp(prefix="finqa-")))
    if source := environment.get("FINQA_DATA_PATH"):
        return store.build("data-path", Path(source))[0].path
    return store.get_or_build(DEFAULT_NAME)[0].path


def main() -> None:
    """Serves on 0.0.0.0:8000, or on HOST and PORT, until it is told to stop."""
    try:
        folder = snapshot_folder(os.environ)
    except FinqaError as error:
        print(error.message, file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(process.main({"HOST": "0.0.0.0", **os.environ, "FINQA_SNAPSHOT": str(folder)}))


def __getattr__(name: str) -> Any:
    """`app`, made when a server asks for it: `main` must not load the data twice."""
    if name == "app":
        return process.application({**os.environ, "FINQA_SNAPSHOT": str(snapshot_folder(os.environ))})
    raise AttributeError(name)


if __name__ == "__main__":
    main()
