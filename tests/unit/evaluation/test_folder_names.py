"""How a comparison names folders whose last parts may be alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from finqa_cli.evaluation.compare.comparison_report import folder_names


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/a", "runs/b"], ["a", "b"]),
        (["outputs/run_001/10_eval", "outputs/run_002/10_eval"], ["run_001/10_eval", "run_002/10_eval"]),
        (["outputs/run_001/10_eval", "outputs/run_001/10_eval/sft"], ["10_eval", "sft"]),
        (["/x/a", "x/a"], ["/x/a", "x/a"]),
        (["a/c", "b/c", "a/d"], ["a/c", "b/c", "a/d"]),
    ],
)
def test_as_few_parts_as_tell_them_apart(paths: list[str], names: list[str]) -> None:
    assert folder_names([Path(path) for path in paths]) == names
