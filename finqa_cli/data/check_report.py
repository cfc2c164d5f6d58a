"""A check report as readable text and as the files that `finqa data check` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finqa_cli.data.check_data import CheckReport
from finqa_cli.data.data_manifest import MANIFEST_FILE, as_text, manifest, write_files

_SHOWN = 20
_REPORT = "check_report"


def summary(report: CheckReport) -> str:
    """Counts, findings and the first problems, for a terminal."""
    return "\n".join([*_summary(report)])


def write_report(report: CheckReport, folder: Path, *, timestamp: str) -> None:
    """Writes `check_report.json`, `check_report.md` and `manifest.json`.

    Raises:
        StorageError: One of them is there already, or writing failed.
    """
    document = manifest(
        "data check",
        timestamp=timestamp,
        config={"path": str(report.path), "kind": report.kind},
        stats=report.statistics,
        inputs=[report.path],
        source=report.source,
        licence=report.licence,
        evaluation_only=report.evaluation_only,
    )
    files = {
        f"{_REPORT}.json": as_text(report.document()),
        f"{_REPORT}.md": markdown(report),
        MANIFEST_FILE: as_text(document),
    }
    write_files(folder, files)


def markdown(report: CheckReport) -> str:
    """The whole report as a document."""
    parts = [f"# Check of {report.path}", _facts(report), "## Statistics"]
    parts += ["\n".join(f"- {_label(name)}: {_value(value)}" for name, value in report.statistics.items())]
    parts += ["## Columns", "\n".join(_columns(report)), "## Findings"]
    parts += ["\n".join(_findings(report)) or "None.", "## Problems"]
    parts += ["\n".join(f"- {_escaped(str(problem))}" for problem in report.problems) or "None."]
    return "\n\n".join(parts) + "\n"


def _summary(report: CheckReport) -> Iterator[str]:
    yield f"{report.path}: {_facts(report)}"
    width = max(map(len, report.statistics), default=0)
    for name, value in report.statistics.items():
        yield f"  {_label(name):<{width}}  {_value(value)}"
    for one in report.findings:
        yield f"{one.text}: {one.count}, for example {_cut(one.examples[0])}"
    yield from (" ".join(str(problem).split()) for problem in report.problems[:_SHOWN])
    if len(report.problems) > _SHOWN:
        yield f"... and {len(report.problems) - _SHOWN} more; --json lists all"
    count = len(report.problems)
    yield f"{count} problem{'s' * (count != 1)}." if count else "All is well."


def _facts(report: CheckReport) -> str:
    use = "for evaluation only" if report.evaluation_only else "may be trained on"
    return f"{report.kind}, source {report.source}, licence {report.licence}, {use}"


def _columns(report: CheckReport) -> Iterator[str]:
    yield "| column | types | missing or empty |"
    yield "| --- | --- | --- |"
    for column in report.schema:
        yield f"| {_escaped(column['column'])} | {_value(column['types'])} | {column['missing']} |"


def _findings(report: CheckReport) -> Iterator[str]:
    for one in report.findings:
        yield f"- {one.text}: {one.count} (`{one.code}`)"
        yield from (f"  - {_escaped(_cut(example))}" for example in one.examples)


def _label(name: str) -> str:
    return name.replace("_", " ")


def _value(value: Any) -> str:
    return ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, Mapping) else str(value)


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:200]}..."


def _escaped(text: str) -> str:
    return _cut(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
