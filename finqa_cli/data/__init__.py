"""Data sets: generated, fetched, read, imported, written, and compiled into snapshots."""

from finqa_cli.data.data_problems import ImportReport, Problem
from finqa_cli.data.dataset import Cell, DataSet, Question, SplitShares, Table
from finqa_cli.data.finqa.finqa_import import import_finqa_json
from finqa_cli.data.generated.embedded import EMBEDDED_SPEC, embedded_layout
from finqa_cli.data.generated.generate import GenerateSpec, generate
from finqa_cli.data.openenv_layout.layout import write_layout
from finqa_cli.data.openenv_layout.layout_reader import (
    Reading,
    import_openenv,
    import_snorkel,
    read_layout,
    scan_layout,
)
from finqa_cli.data.rllm.rllm_import import import_rllm
from finqa_cli.data.snapshots.compile import compile_snapshot
from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots

__all__ = [
    "DEFAULT_NAME",
    "EMBEDDED_SPEC",
    "Cell",
    "DataSet",
    "GenerateSpec",
    "ImportReport",
    "LocalSnapshots",
    "Problem",
    "Question",
    "Reading",
    "SplitShares",
    "Table",
    "compile_snapshot",
    "embedded_layout",
    "generate",
    "import_finqa_json",
    "import_openenv",
    "import_rllm",
    "import_snorkel",
    "read_layout",
    "scan_layout",
    "write_layout",
]
