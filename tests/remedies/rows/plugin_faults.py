"""Components of plugins with a mistake."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.mistaken_plugin import MARK, MistakenPlugin
from remedies.faults import Fault, new

from finqa_cli.extend.registry import registry

PLAY = "eval acme-engine --environment acme-environment --limit 1 --split test --sandboxes 1"
FILE = "ACME_PLUGIN_FILE"


def acme(base: str = "", body: str = "", module: str = "") -> Callable[[], AbstractContextManager[Any]]:
    """The plugin `acme`, installed with a mistake."""

    @contextmanager
    def installed() -> Iterator[Any]:
        with tempfile.TemporaryDirectory() as site, pytest.MonkeyPatch.context() as patch:
            plugin = MistakenPlugin(Path(site), patch, base=base, body=body, module=module)
            os.environ[FILE] = str(plugin.file)
            yield SimpleNamespace(url=str(plugin.file))
        registry.cache_clear()

    return installed


def corrected() -> None:
    """The author takes the mistake out; the next command starts afresh."""
    file = Path(os.environ[FILE])
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if MARK not in line))
    sys.modules.pop(file.stem, None)  # absent where it could not be imported
    importlib.invalidate_caches()
    registry.cache_clear()


PLUGINS = {
    "a method that fails": Fault(
        PLAY,
        server=acme("Inventory", f"name = 'x'\ndef tasks(self, split): raise KeyError('bolts')  {MARK}"),
        by_hand=corrected,
        needs=(),
    ),
    "a class that is not there": Fault(
        PLAY.replace("acme-engine", "acme-lost"),
        server=acme(module="EXTRA.append(Component(kind='engine', name='acme-lost', target=f'{__name__}:Nosuch'))"),
        by_hand=new(PLAY),
        needs=(),
    ),
    "one name of two components": Fault(
        "plugins check acme-reward",
        server=acme(
            "Judge",
            "def score(self, request): return Rewards(total=float(request.solution == request.truth))",
            "EXTRA.append(Component(kind='sandbox', name='acme-reward', target=f'{__name__}:Judge'))",
        ),
        needs=(),
        then=(0, 1),
    ),
}
