"""Data sets: generated, read, imported, written, and compiled into snapshots. Pure but for the files they name."""

from finqa_cli.data.dataset import Cell, DataSet, Question, SplitShares, Table
from finqa_cli.data.embedded import EMBEDDED_SPEC, embedded_layout
from finqa_cli.data.generate import GenerateSpec, generate
from finqa_cli.data.layout import write_layout

__all__ = [
    "EMBEDDED_SPEC",
    "Cell",
    "DataSet",
    "GenerateSpec",
    "Question",
    "SplitShares",
    "Table",
    "embedded_layout",
    "generate",
    "write_layout",
]
