"""Every file of real runs matches the JSON Schema that the documentation publishes for it, and nothing else does."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import file_schemas
import pytest
from fixtures.file_checks import check_folder, errors

from finqa_cli.app import main
from finqa_cli.data import LocalSnapshots
from finqa_cli.testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch", reason="needs finqa[train]")

TEXT = ("--environment=finqa-text", "--quiet")
LENGTH = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return len(solution_str)\n"
REWARD = ("--reward=function", "--set=reward.options.function=length.py:compute_score")
TRAIN = (
    *("--engine=transformers", "--limit=2", "--group-size=2", "--target-groups-per-iter=1", "--iterations=1"),
    *("--max-rollout-rounds=1", "--max-gen-tokens=6", "--max-staleness=0"),
)
FILE = ("--validation-samples=2", "--validate-every=2", "--max-gen-tokens=6", "--quiet")
RUNS = {
    "eval": ("eval", "scripted", *TEXT, "--limit=6", "--attempts=2"),
    "tools": ("eval", "scripted", "--limit=2", "--max-steps=3", "--sandboxes=2", "--quiet"),
    "right": ("eval", "scripted", "--limit=2", "--sandboxes=2", "--quiet"),
    "again": ("eval", "--rescore=tools", "--grader=strict", "--quiet"),
    "train": ("train", "--model=tiny", *TRAIN, *REWARD, *TEXT),
    "dry": ("train", "--dry-run", "--engine=scripted", "--num-steps=1", "--batch-size=2", *TEXT),
    "sample": ("sample", "tiny", "--limit=4", "-k2", "--split=train", "--max-gen-tokens=6", *REWARD, *TEXT),
    "prefs": ("prefs", "sample", "--held-out-share=0.3", "--quiet"),
    "sft": ("sft", "eval", "--model=train", "--epochs=1", "--batch-tokens=900", *FILE),
    "dpo": ("dpo", "prefs", "--model=tiny", "--epochs=1", "--pairs-per-step=2", *FILE),
}
"""Folder -> words of the command that writes it, in the order in which they run."""

Values = dict[str, list[Any]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder with a run of each command, a comparison, an import, generated data and a snapshot."""
    home = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINQA_HOME", str(home / "home"))
        patch.chdir(home)
        make_tiny_qwen3(Path("tiny"))
        Path("length.py").write_text(LENGTH)
        for name, words in RUNS.items():
            assert main([*words, f"--run-dir={name}"]) == 0, name
        assert main(["compare", "tools", "right", "--out=compared", "--no-plots", "--quiet"]) == 0
        Path("tables").mkdir()
        Path("tables/acme.csv").write_text("item,2024,2025\nrevenue,100,120\ncosts,80,90\n")
        question = {"question": "What was the revenue of 2025?", "answer": 120}
        assert not errors("own-question", question)
        Path("questions.jsonl").write_text(json.dumps(question) + "\n")
        own = ["data", "import", "tables", "tables", "--questions=questions.jsonl", "--out=own", "--company=name:Acme"]
        assert main([*own, "--quiet"]) == 0
        yield home


@pytest.fixture(scope="module")
def values(written: Path) -> Values:
    """All objects of these folders by the schema that they match."""
    found: Values = defaultdict(list)
    snapshot = LocalSnapshots(written / "home").get("openenv-finqa").path
    for folder in (*(written / name for name in RUNS), written / "compared", written / "own", snapshot):
        for schema, checked in check_folder(folder).items():
            found[schema] += checked
    return found


def test_real_files_match_their_schemas(values: Values) -> None:
    elsewhere = {"own-question", "fetch"}  # written by users, and by downloads
    assert set(values) == set(file_schemas.FORMATS) - elsewhere
    assert {line["kind"] for line in values["metrics"]} == {
        *("train", "rollout", "sft", "validation", "dpo", "held_out"),
        *("eval",),
    }
    assert {line["event"] for line in values["event"]} >= {"run_start", "run_end", "pool", "sandbox_ready", "weights"}


USERS = {"own-question", "question", "dataset", "table", "prediction"}
OPEN = {"TrainLine", "DpoLine"}


def spoiled(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of an object with one mistake each."""
    required = [key for key in value if key in _required(name, value)]
    assert required, name
    for key in required:
        lacking = copy.deepcopy(value)
        del lacking[key]
        yield f"without {key}", lacking
        if value[key] is not None and not isinstance(value[key], bytearray):
            yield f"{key} of another type", {**value, key: bytearray()}  # of no JSON type
    yield "with a further field", {**value, "no_such_field": "text"}


def _required(name: str, value: Any) -> list[str]:
    whole = file_schemas.schema(name)
    parts = [whole, *whole.get("$defs", {}).values()]
    mark = next((key for key in ("event", "kind") if name in ("event", "metrics") and key in value), None)
    for part in parts:
        fits = mark is None or part.get("properties", {}).get(mark, {}).get("const") == value[mark]
        if "required" in part and fits and set(part["required"]) <= set(value):
            return list(part["required"])
    return []


@pytest.mark.parametrize("name", sorted(set(file_schemas.FORMATS) - {"table", "fetch", "own-question", "dataset"}))
def test_a_schema_refuses_what_is_missing_of_another_type_or_unknown(name: str, values: Values) -> None:
    kinds = {
        value.get("kind", value.get("event")) if name in ("metrics", "event") else None: value for value in values[name]
    }
    for value in kinds.values():
        for mistake, wrong in spoiled(name, value):
            accepted = mistake == "with a further field" and name in USERS - {"prediction"}
            assert bool(errors(name, wrong)) is not accepted, f"{name}: {mistake}"


def test_numbers_are_no_texts_and_rows_of_tables_are_flat() -> None:
    assert errors("table", {"item": 1}) and errors("table", [["item"]]) and errors("table", [{"item": [1]}])
    assert not errors("table", [{"item": "revenue", "2025": 1.5, "2024": None}])
    assert errors("own-question", {"answer": 1}) and errors("dataset", {"evaluation_only": "false"})
    assert errors("fetch", {}) and not errors("dataset", {"source": "my books"})
