"""Reads, executes and compares programs of the original FinQA data (arXiv 2109.00122).

Pure and standard library only; a program may be adversarial text. The rules are those of the official evaluation of the
data set; each module states where it is stricter or more lenient. Any text is processed in linear time.
"""

from __future__ import annotations

from finqa_cli.grading.programs.equivalence import difference, overlap
from finqa_cli.grading.programs.execute import ProgramTable, Value, execute
from finqa_cli.grading.programs.parse import parse
from finqa_cli.grading.programs.program import MAX_CHARACTERS, MAX_STEPS, Program, ProgramError, Reference, Step
from finqa_cli.grading.programs.program_metrics import (
    ProgramVerdict,
    compare,
    execution_accuracy,
    program_accuracy,
    step_overlap,
)

__all__ = [
    "MAX_CHARACTERS",
    "MAX_STEPS",
    "Program",
    "ProgramError",
    "ProgramTable",
    "ProgramVerdict",
    "Reference",
    "Step",
    "Value",
    "compare",
    "difference",
    "execute",
    "execution_accuracy",
    "overlap",
    "parse",
    "program_accuracy",
    "step_overlap",
]
