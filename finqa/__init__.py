"""Evaluate and train LLM agents on financial question answering from Python, with the workflows of `finqa` commands.

>>> import finqa
>>> evaluation = finqa.evaluate("scripted", split="test", limit=4, sandboxes=2)
>>> evaluation.accuracy, evaluation.n
(1.0, 4)

Heavy packages are imported only when a function is called. `docs/python.md` describes the interface.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from finqa_cli import __version__
from finqa_cli.errors import (
    AuthenticationError,
    BudgetReachedError,
    ConfigError,
    DataError,
    FinqaError,
    InterruptedRun,
    MissingDependencyError,
    NothingToLearnError,
    ServiceUnavailableError,
    StorageError,
    ThresholdError,
    UsageError,
)

if TYPE_CHECKING:
    from finqa.recordings import Episode, Episodes, Records, Run, load_run
    from finqa.results import Evaluation, Progress, Samples, Training
    from finqa.workflows import evaluate, evaluate_async, sample, sample_async, train, train_async

_PLACES = {
    **dict.fromkeys(("Episode", "Episodes", "Records", "Run", "load_run"), "finqa.recordings"),
    **dict.fromkeys(("Evaluation", "Progress", "Samples", "Training"), "finqa.results"),
    **dict.fromkeys(
        ("evaluate", "evaluate_async", "sample", "sample_async", "train", "train_async"), "finqa.workflows"
    ),
}
"""Module of each name that is imported at its first use."""

__all__ = [
    "AuthenticationError",
    "BudgetReachedError",
    "ConfigError",
    "DataError",
    "Episode",
    "Episodes",
    "Evaluation",
    "FinqaError",
    "InterruptedRun",
    "MissingDependencyError",
    "NothingToLearnError",
    "Progress",
    "Records",
    "Run",
    "Samples",
    "ServiceUnavailableError",
    "StorageError",
    "ThresholdError",
    "Training",
    "UsageError",
    "__version__",
    "evaluate",
    "evaluate_async",
    "load_run",
    "sample",
    "sample_async",
    "train",
    "train_async",
]


def __getattr__(name: str) -> Any:
    """Import the module of a name at its first use."""
    if (module := _PLACES.get(name)) is None:
        raise AttributeError(f"module 'finqa' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
