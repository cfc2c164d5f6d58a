"""The interpreters of the environments that `make test-libraries` makes."""

from __future__ import annotations

import os
from pathlib import Path

# Read at import: the autouse fixture of the whole suite removes every FINQA_ variable.
PYTHONS = {
    library: Path(named).absolute() if (named := os.environ.get(f"FINQA_{library.upper()}_PYTHON", "")) else None
    for library in ("verifiers", "verifiers4", "inspect")
}
