"""The published versions of OpenEnv that `make compat` installs, each in an environment of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# Read at import: the autouse fixture of the whole suite removes every FINQA_ variable.
PYTHONS = {
    "0.3.0": os.environ.get("FINQA_COMPAT_PYTHON_030", ""),
    "0.10": os.environ.get("FINQA_COMPAT_PYTHON_010", ""),
}


@dataclass(frozen=True, slots=True)
class StockOpenEnv:
    """One version.

    Attributes:
        version: `0.3.0` is the package openenv-core, `0.10` its successor openenv.
        python: The interpreter of its environment.
    """

    version: str
    python: Path

    @property
    def command(self) -> Path:
        """Its `openenv` command."""
        return self.python.with_name("openenv")
