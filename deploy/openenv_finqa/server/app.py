"""The FinQA environment as OpenEnv starts it: `uvicorn server.app:app`, `uv run server` or `python -m server.app`.

The data is, in this order: FINQA_SNAPSHOT, a folder that `finqa snapshot build` made; FINQA_DATA_PATH, a folder in the
layout of OpenEnv's FinQA data, compiled at start-up; the data set that finqa brings along. HOST, PORT, FINQA_TOKEN and
the variables of `docs/server.md` are those of the server itself.
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


def server_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of the server: in a Space of Hugging Face, its own name is an allowed host."""
    space = environment.get("SPACE_HOST", "")
    return {**({"FINQA_ALLOWED_HOSTS": space} if space and not environment.get("FINQA_TOKEN") else {}), **environment}


def main() -> None:
    """Serves on 0.0.0.0:8000, or on HOST and PORT, until it is told to stop."""
    try:
        folder = snapshot_folder(os.environ)
    except FinqaError as error:
        print(error.message, file=sys.stderr)
        sys.exit(error.exit_code)
    variables = server_variables(os.environ)
    sys.exit(process.main({"HOST": "0.0.0.0", **variables, "FINQA_SNAPSHOT": str(folder)}))


def __getattr__(name: str) -> Any:
    """`app`, made when a server asks for it: `main` must not load the data twice."""
    if name == "app":
        folder = snapshot_folder(os.environ)
        return process.application({**server_variables(os.environ), "FINQA_SNAPSHOT": str(folder)})
    raise AttributeError(name)


if __name__ == "__main__":
    main()
