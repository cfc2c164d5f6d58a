"""Which split is evaluated on, alone and while training."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures import finqa_text_rows

from finqa_cli.evaluation.evaluate import eval_split, held_out_split, held_out_tasks
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import load_settings
from finqa_cli.wiring.build import open_environment


@pytest.mark.parametrize(
    ("files", "asked", "alone", "while_training"),
    [
        (("train", "dev", "test"), "dev,test,train", "dev", "dev"),
        (("train", "test"), "dev,test,train", "test", "test"),
        (("train",), "dev,test,train", "train", ""),
        (("train", "dev"), "train", "train", "train"),
        (("train", "dev"), "test,train", "train", ""),
    ],
)
def test_the_training_split_is_evaluated_on_while_training_only_where_it_is_asked_for_first(
    files: tuple[str, ...], asked: str, alone: str, while_training: str, tmp_path: Path
) -> None:
    for number, split in enumerate(files):
        rows = [finqa_text_rows.original(number, id=f"C{number}/1.pdf-1", filename=f"C{number}/1.pdf")]
        finqa_text_rows.write(tmp_path / f"{split}.json", *rows)
    flags = {"environment.name": "finqa-text", "data.path": tmp_path, "data.eval_split": asked}
    settings = load_settings(flags=flags).settings
    environment = open_environment(settings, Reporter())
    assert eval_split(environment, settings) == alone
    assert held_out_split(environment, settings) == while_training
    assert [task.split for task in held_out_tasks(environment, settings)] == [while_training] * bool(while_training)
