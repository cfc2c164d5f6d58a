"""Results and progress of the functions: frozen and typed, each result with its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finqa.recordings import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a phase of a workflow.

    Attributes:
        phase: Name of the phase, such as `eval`, `rollout` or `train`.
        done: Number of finished steps.
        total: Number of planned steps; None if it is not known.
        fields: Current figures, such as the mean reward.
        ended: The phase has ended.
    """

    phase: str
    done: int
    total: int | None
    fields: Mapping[str, object] = field(default_factory=dict)
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of `finqa.evaluate`.

    Attributes:
        target: Policy or engine that played.
        split: Split of the questions.
        accuracy: Share of right answers of the graded episodes; None if none could be graded.
        interval: Its 95 % interval, clustered by company or another property of questions; None without an accuracy.
        n: Number of graded episodes.
        faults: Episodes that ended in infrastructure faults; they are excluded from means.
        report: All figures, as `finqa eval --json` prints them.
        run: The run on disk.
    """

    target: str
    split: str
    accuracy: float | None
    interval: tuple[float, float] | None
    n: int
    faults: int
    report: Mapping[str, Any] = field(repr=False)
    run: Run

    def _repr_html_(self) -> str:
        return self.run._repr_html_()


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The result of `finqa.train`.

    Attributes:
        iterations: Number of finished iterations.
        accuracy_before: Accuracy on held-out questions before training; None without an evaluation.
        accuracy_after: Accuracy on the same questions after the last iteration.
        before: All figures of the evaluation before; empty without one.
        after: All figures of the last evaluation.
        seconds: Wall time of this call, in seconds.
        was_finished: The call resumed a run whose iterations were all done already.
        run: The run on disk; `finqa.evaluate(str(training.run.path))` evaluates its policy.
    """

    iterations: int
    accuracy_before: float | None
    accuracy_after: float | None
    before: Mapping[str, Any] = field(repr=False)
    after: Mapping[str, Any] = field(repr=False)
    seconds: float
    was_finished: bool = False
    run: Run

    def _repr_html_(self) -> str:
        return self.run._repr_html_()


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The result of `finqa.sample`.

    Attributes:
        target: Policy or engine that played.
        candidates: Number of graded candidates.
        questions: Number of questions with candidates.
        faults: Attempts that ended in infrastructure faults; they are not candidates.
        report: All figures, as in report.json.
        seconds: Wall time of this call, in seconds.
        candidates_path: File with texts, token ids and log-probabilities of the candidates, one line per question.
        scores_path: File with their rewards.
        run: The run on disk.
    """

    target: str
    candidates: int
    questions: int
    faults: int
    report: Mapping[str, Any] = field(repr=False)
    seconds: float
    candidates_path: Path
    scores_path: Path
    run: Run

    def _repr_html_(self) -> str:
        return self.run._repr_html_()
