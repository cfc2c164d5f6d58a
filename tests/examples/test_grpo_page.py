"""The page that explains `examples/grpo_in_one_file.py` shows its code, all of it and in its order."""

from __future__ import annotations

import ast
from pathlib import Path

from fixtures.document_blocks import blocks_of

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "examples/grpo_in_one_file.py").read_text(encoding="utf-8")
SHOWN = [
    block.text
    for block in blocks_of((ROOT / "docs/concepts/grpo-in-one-file.md").read_text(encoding="utf-8"))
    if block.language == "python"
]


def test_the_code_of_the_page_is_that_of_the_file_in_its_order() -> None:
    place = 0
    for text in SHOWN:
        found = SOURCE.find(text, place)
        assert found >= 0, f"the file has not, after what the page showed before:\n{text}"
        place = found + len(text)


def test_the_page_shows_every_function_and_class() -> None:
    tree = ast.parse(SOURCE)
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    assert len(defined) >= 8
    shown = "".join(SHOWN)
    methods = [each for node in defined for each in node.body if isinstance(each, ast.FunctionDef)]
    for node in (*(each for each in defined if not isinstance(each, ast.ClassDef)), *methods):
        code = ast.get_source_segment(SOURCE, node)
        assert code and code in shown, f"the page lacks {node.name}"


def test_the_advantages_of_its_example_are_those_of_the_file() -> None:
    rewards = [1.0, 0.0, 0.0, 0.0]
    mean = sum(rewards) / 4
    deviation = (sum((reward - mean) ** 2 for reward in rewards) / 4) ** 0.5
    advantages = ", ".join(f"{(reward - mean) / deviation:.2f}" for reward in rewards)
    page = (ROOT / "docs/concepts/grpo-in-one-file.md").read_text(encoding="utf-8")
    assert f"With\nrewards 1, 0, 0, 0 the advantages are {advantages}" in page
