"""The JSON Schemas (draft 2020-12) of files that users read or write, generated from the types that describe them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import data_files
import recorded_attempts
import recorded_metrics
import run_files
import run_reports
import source_lists
from pydantic import BaseModel, Field, TypeAdapter, create_model
from written_types import WrittenSchema, one_line

from finqa_cli import __version__
from finqa_cli.data.fetch.fetch_manifest import Manifest as FetchFile
from finqa_cli.settings import Settings
from finqa_cli.settings.schema import DECLARATIONS, Choice
from finqa_cli.training.preference.dpo_run import DpoResult
from finqa_cli.training.sft.sft_run import SftResult

DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        kind: The type that describes it, or a line of it.
        title: Path of the file, and the command that writes it if others write a file of this name too.
        text: Description; None: that of the type.
    """

    kind: Any
    title: str
    text: str | None = None


def _recorded(model: type[BaseModel], section: str = "") -> Any:
    """Return the model of a section of the settings as it is recorded, with units and without its declarations."""
    parts: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Choice:
            parts[name] = (_recorded(kind, f"{name}."), Field(description=field.description or one_line(kind.__doc__)))
        else:
            declared = DECLARATIONS.get(f"{section}{name}")
            unit = f" ({declared.about.unit})" if declared and declared.about.unit else ""
            constrained = Annotated[(kind, *field.metadata)] if field.metadata else kind
            text = f"{field.description or name}{unit}."
            parts[name] = (constrained, Field(default=field.default, description=text))
    return create_model(model.__name__, __doc__=model.__doc__, **parts)


_RUN = functools.reduce(operator.or_, (run_files.RunFile, run_files.StepsFile))
_STATE = functools.reduce(operator.or_, (run_files.TrainState, run_files.FileState))
_SCORED = recorded_attempts.ScoredAnswer | recorded_attempts.ScoredGroup
_METRICS = Annotated[functools.reduce(operator.or_, recorded_metrics.LINES), Field(discriminator="kind")]
_EVENT: Any = Annotated[
    functools.reduce(operator.or_, [each.model for each in source_lists.events()]), Field(discriminator="event")
]

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "run": Format(_RUN, "run.json", "Command, status and process of a run, a pipeline or an experiment."),
        "settings": Format(_recorded(Settings), "settings.json", "All settings of a run. Secrets are masked."),
        "manifest": Format(run_files.ManifestFile, "manifest.json"),
        "start": Format(run_files.StartFile, "start.json"),
        "metrics": Format(_METRICS, "metrics.jsonl, a line", "An iteration, an optimizer step or an evaluation."),
        "trajectory": Format(recorded_attempts.TrajectoryLine, "trajectories.jsonl, a line"),
        "event": Format(_EVENT, "events.jsonl, a line", "An event of a run."),
        "checkpoint-manifest": Format(run_files.CheckpointManifest, "checkpoints/step_N/manifest.json"),
        "checkpoint-state": Format(_STATE, "checkpoints/step_N/state.json", "Position of a run, besides weights."),
        "report-eval": Format(run_reports.EvalReportFile, "report.json of finqa eval"),
        "report-sample": Format(run_reports.SampleReportFile, "report.json of finqa sample"),
        "report-sft": Format(SftResult, "report.json of finqa sft"),
        "report-dpo": Format(DpoResult, "report.json of finqa dpo"),
        "report-prefs": Format(run_reports.PrefsReportFile, "report.json of finqa prefs"),
        "metrics-eval": Format(run_reports.MetricsFile, "metrics.json of finqa eval"),
        "breakdown": Format(run_reports.BreakdownRow, "breakdown.csv, a row"),
        "items": Format(run_reports.ItemRow, "items.csv, a row"),
        "prediction": Format(recorded_attempts.PredictionLine, "samples/predictions.jsonl, a line"),
        "held-out-answer": Format(recorded_attempts.HeldOutLine, "valid_samples/step_N.jsonl, a line"),
        "candidates": Format(recorded_attempts.CandidatesLine, "candidates.jsonl, a line"),
        "scores": Format(recorded_attempts.ScoresLine, "scores.jsonl of finqa sample, a line"),
        "scored": Format(_SCORED, "scores.jsonl of finqa rewards score, a line", "Verdicts of a reward."),
        "pair": Format(recorded_attempts.PairLine, "pairs.jsonl, a line"),
        "comparison": Format(run_reports.ComparisonFile, "comparison.json"),
        "compared-run": Format(run_reports.ComparedRun, "summary.csv, a row"),
        "own-question": Format(data_files.OwnQuestion, "your questions, a row"),
        "question": Format(data_files.QuestionRow, "benchmark_questions/finqa.csv, a row"),
        "table": Format(
            data_files.TableRows, "input_companies/COMPANY/TABLE.json", "Rows of a table; all have the same columns."
        ),
        "dataset": Format(data_files.AboutFile, "dataset.json"),
        "import": Format(data_files.ImportFile, "import.json"),
        "fetch": Format(FetchFile, "fetch.json"),
        "snapshot": Format(data_files.SnapshotManifest, "manifest.json of a snapshot"),
        "snapshot-task": Format(data_files.SnapshotTask, "tasks.jsonl of a snapshot, a line"),
        "snapshot-truth": Format(data_files.SnapshotTruth, "truth.jsonl of a snapshot, a line"),
    }
)
"""Name of a schema -> the kind of file that it describes."""


@functools.cache
def schema(name: str) -> dict[str, Any]:
    """Return the schema of a format.

    Raises:
        KeyError: There is no such format.
    """
    form = FORMATS[name]
    found = schema_of(form.kind)
    text = form.text or found["description"]
    head = {"$schema": DIALECT, "$id": f"urn:finqa:{__version__}:{name}", "title": form.title, "description": text}
    return head | {key: value for key, value in found.items() if key not in head}


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of a type, without address and title."""
    found = TypeAdapter(kind).json_schema(schema_generator=WrittenSchema, mode="validation")
    found.pop("title", None)
    return found
