"""The interpreter of the environment that `make test-trl` makes."""

from __future__ import annotations

import os
from pathlib import Path

# Read at import: the autouse fixture of the whole suite removes every FINQA_ variable.
_NAMED = os.environ.get("FINQA_TRL_PYTHON", "")
PYTHON = Path(_NAMED).absolute() if _NAMED else None
