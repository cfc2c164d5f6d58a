"""What a data folder says about itself: in `dataset.json`, which finqa writes, or in `fetch.json` of a download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.openenv_layout.layout import ABOUT_FILE
from finqa_cli.data.question_files.field_values import text_fault
from finqa_cli.data.question_files.read_files import read_json

FETCH_FILE = "fetch.json"
_FOLDERS_UP = 3
"""A fetched file lies at most this deep: data/multi_table_data/train_finqa.csv of rLLM-FinQA."""

_WORDS = {str: "a text", bool: "true or false", list: "a list"}


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Where data comes from and what it may be used for; what is not said is empty or None."""

    source: str = ""
    licence: str = ""
    evaluation_only: bool | None = None


def about_folder(folder: Path) -> About:
    """What `dataset.json` says, and where there is none `fetch.json`.

    Types are insisted on: `"false"` read as true, or the reverse, would be harmful.

    Raises:
        ProblemError: The file is damaged.
    """
    path = folder / ABOUT_FILE
    if not path.exists():
        return _fetched(folder, None)
    about = _checked(path, {"source": str, "licence": str, "evaluation_only": bool})
    return About(**{field: about[field] for field in About.__dataclass_fields__ if field in about})


def about_file(path: Path) -> About:
    """What `fetch.json` says about a file, from the folder that it was fetched into.

    Raises:
        ProblemError: `fetch.json` is damaged.
    """
    folders = path.absolute().parents[:_FOLDERS_UP]
    return next((_fetched(folder, path.absolute()) for folder in folders if (folder / FETCH_FILE).exists()), About())


def _fetched(folder: Path, file: Path | None) -> About:
    """Only a mark "for evaluation only" counts: a file without it may still be known as test data in other ways."""
    path = folder / FETCH_FILE
    if not path.exists():
        return About()
    kinds = {"repository": str, "revision": str, "licence": str, "evaluation_only": bool, "files": list}
    record = _checked(path, kinds)
    marked = [one for one in record.get("files", []) if isinstance(one, dict) and one.get("evaluation_only") is True]
    held_out = record.get("evaluation_only") is True or file in [folder / str(one.get("path")) for one in marked]
    source = " at ".join(filter(None, (record.get("repository", ""), record.get("revision", "")[:12])))
    return About(source=source, licence=record.get("licence", ""), evaluation_only=held_out or None)


def _checked(path: Path, kinds: Mapping[str, type]) -> dict[str, Any]:
    document = read_json(path)
    if not isinstance(document, dict):
        raise ProblemError(Problem(file=str(path), reason="must be an object"))
    for field, kind in kinds.items():
        value = document.get(field, kind())
        if not isinstance(value, kind) or (isinstance(value, str) and text_fault(value)):
            raise ProblemError(Problem(file=str(path), field=field, reason=f"must be {_WORDS[kind]}"))
    return document
