"""Every block of commands in README and docs runs here, or says above it why it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.data_files import write_rllm
from fixtures.document_blocks import Block, blocks_of, first_missing, mark_error, run_block

from finqa_cli.app import main

ROOT = Path(__file__).parents[2]
SLOW = "run: slow"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    return blocks_of(page.read_text(encoding="utf-8"))


def pages_with(*marks: str) -> list[str]:
    """The pages that have a block with one of the marks."""
    return [str(page.relative_to(ROOT)) for page in PAGES if any(block.mark in marks for block in blocks(page))]


def run_page(name: str, *marks: str) -> None:
    """Write the files of a page and run its blocks that have one of the marks, in the current folder.

    What `FILES` names is made before the first block; what `PREPARED` names only for slow blocks, at the block marked
    `prepared` or before the first one.
    """
    pytest.importorskip("torch", reason="needs finqa[train]")
    found = blocks(ROOT / name)
    FILES.get(name, lambda: None)()
    prepare = PREPARED.get(name, lambda: None) if SLOW in marks else lambda: None
    if not any(block.mark.startswith("not run: prepared") for block in found):
        prepare()
    for block in found:
        if block.mark.startswith("file: "):
            path = Path(block.mark.removeprefix("file: "))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.mark.startswith("not run: prepared"):
            prepare()
        elif block.mark in marks:
            run_block(block)


def call(*words: str) -> None:
    assert main([*words, "-q"]) == 0, words


def prepare_tables() -> None:
    """The tables and questions of the tutorial, and questions with a wrong answer and with a broken query."""
    (source,) = (block for block in blocks(ROOT / TABLES) if block.mark == "file: make_tables.py")
    exec(compile(source.text, "make_tables.py", "exec"), {})
    questions = Path("questions.csv").read_text(encoding="utf-8")
    lines = questions.splitlines(keepends=True)
    wrong = lines[2].replace("1428", "9999")
    Path("wrong.csv").write_text("".join((*lines[:2], wrong, *lines[3:])), encoding="utf-8")
    Path("broken.csv").write_text(questions.replace("WHERE item", "WHERE line_item", 1), encoding="utf-8")


def prepare_demo() -> None:
    """The runs of `make demo`, under the names that the page shows."""
    demo = ("train", f"--config={ROOT / 'recipes/demo.toml'}")
    run = "runs/20261127_211044"
    call(*demo, f"--run-dir={run}")
    call(*demo, "--shuffle-rewards", "--iterations=8", f"--run-dir={run}_control")


def prepare_runs() -> None:
    """A training, its control and the same training with another seed, and an evaluation."""
    for name, arguments in {"a": (), "a_control": ("--shuffle-rewards",), "b": ("--seed=1",)}.items():
        call("train", "--quick-test", "--model=embedded", *arguments, f"--run-dir=runs/{name}")
    call("eval", "scripted", "--limit=2", "--run-dir=runs/20260101_120000")
    call("eval", "scripted", "--limit=2", "--run-dir=experiments/march/first")


def prepare_rllm() -> None:
    """The data set of rLLM as it is unpacked, with four questions."""
    write_rllm(Path("data/rllm"))


TABLES = "docs/tutorials/your-own-tables.md"
FILES: dict[str, Callable[[], None]] = {"docs/tutorials/finqa-on-one-gpu.md": prepare_rllm}
"""Files that a page expects to be there, which are made in no time."""

PREPARED: dict[str, Callable[[], None]] = {
    TABLES: prepare_tables,
    "docs/own-tables.md": prepare_tables,
    "docs/tutorials/first-run.md": prepare_demo,
    "docs/reports.md": prepare_runs,
    "docs/view.md": prepare_runs,
}
"""What slow blocks of a page expect to be there."""


def test_every_block_of_commands_is_run_or_says_why_not() -> None:
    errors = [
        f"{page.relative_to(ROOT)}:{block.line}: {error}"
        for page in PAGES
        for block in blocks(page)
        if (error := mark_error(block))
    ]
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize("page", pages_with("run"))
def test_the_quick_blocks_of_a_page_do_what_they_show(page: str, empty_folder: Path) -> None:
    run_page(page, "run")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", pages_with(SLOW))
def test_all_blocks_of_a_page_do_what_they_show(page: str, empty_folder: Path) -> None:
    run_page(page, "run", SLOW)


@pytest.mark.parametrize(
    ("mark", "text", "error"),
    [
        ("", "$ finqa doctor\n", "neither"),
        ("<!-- file: a.txt -->", "$ finqa doctor\n", "neither"),
        ("<!-- not run: I did not want to -->", "$ finqa doctor\n", "begins with none"),
        ("<!-- not run: output of `make demo` -->", "$ finqa doctor\n", "no reason"),
        ("<!-- run -->", "No problems found.\n", "no command"),
        ("<!-- run -->", "$ finqa doctor\n", ""),
        ("<!-- not run: GPU -->", "$ finqa doctor\n", ""),
    ],
)
def test_marks_are_checked(mark: str, text: str, error: str) -> None:
    (block,) = blocks_of(f"Text.\n\n{mark}\n```console\n{text}```\n")
    assert error in mark_error(block) and bool(error) == bool(mark_error(block))


def test_a_block_whose_output_is_another_or_that_fails_is_noticed(empty_folder: Path) -> None:
    for text in ("$ echo one\ntwo\n", "$ false\n", "$ finqa show nothing\n", "$ echo fine\nerror: no\n"):
        (block,) = blocks_of(f"<!-- run -->\n```console\n{text}```\n")
        with pytest.raises(AssertionError):
            run_block(block)


def test_output_is_compared_without_its_numbers() -> None:
    output = "chosen: x\naccuracy 0.50, interval 1e-5\n\nb  2\nc three\nd\n"
    assert first_missing(["accuracy 0.094, interval 3.1", "b     17"], output) is None
    assert first_missing(["chosen: x", "...", "c thr...", "d"], output) is None
    assert first_missing(["b 2", "accuracy 1, interval 1"], output) == "b #\naccuracy #, interval #"
    assert first_missing(["b 2", "d"], output) == "b #\nd"
