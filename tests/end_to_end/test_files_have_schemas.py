"""Every file of real runs matches the JSON Schema that the documentation publishes for it, and nothing else does."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import file_schemas
import pytest
from fixtures.document_blocks import blocks_of
from fixtures.file_checks import check_folder, errors
from jsonschema import Draft202012Validator, ValidationError

from finqa_cli.app import main
from finqa_cli.data import LocalSnapshots
from finqa_testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch", reason="needs finqa[train]")

ROOT = Path(__file__).parents[2]
TEXT = ("--environment=finqa-text", "--quiet")
LENGTH = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return len(solution_str)\n"
REWARD = ("--reward=function", "--set=reward.options.function=length.py:compute_score")
TRAIN = (
    *("--engine=transformers", "--limit=2", "--group-size=2", "--target-groups-per-iter=1", "--iterations=1"),
    *("--max-rollout-rounds=1", "--max-gen-tokens=6", "--max-staleness=0"),
)
FILE = ("--validation-samples=2", "--validate-every=4", "--set=generation.max_gen_tokens=6", "--epochs=1", "--quiet")
RUNS = {
    "eval": ("eval", "scripted", *TEXT, "--limit=2", "--attempts=2", "--split=train"),
    "tools": ("eval", "scripted", "--limit=2", "--max-steps=3", "--sandboxes=2", "--quiet"),
    "policy": ("eval", "tiny", "--limit=2", "--attempts=2", "--split=train", "--max-gen-tokens=6", *TEXT),
    "again": ("eval", "--rescore=tools", "--grader=strict", "--quiet"),
    "train": ("train", "--model=tiny", *TRAIN, *REWARD, *TEXT),
    "dry": ("train", "--dry-run", "--engine=scripted", "--num-steps=1", "--batch-size=2", *TEXT),
    "sample": ("sample", "tiny", "--limit=4", "-k2", "--split=train", "--max-gen-tokens=6", *REWARD, *TEXT),
    "prefs": ("prefs", "sample", "--held-out-share=0.3", "--quiet"),
    "sft": ("sft", "eval", "--model=train", "--batch-tokens=3000", *FILE),
    "dpo": ("dpo", "prefs", "--model=tiny", "--pairs-per-step=2", *FILE),
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
        assert main(["compare", "eval", "policy", "--out=compared", "--no-plots"]) == 0
        Path("tables").mkdir()
        Path("tables/acme.csv").write_text("item,2024,2025\nrevenue,100,120\ncosts,80,90\n")
        question = {"question": "What was the revenue of 2025?", "answer": 120}
        assert not errors("own-question", question)
        Path("questions.jsonl").write_text(json.dumps(question) + "\n")
        own = ["data", "import", "tables", "tables", "--questions=questions.jsonl", "--out=own", "--company=name:Acme"]
        assert main(own) == 0
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
    elsewhere = {"own-question", "fetch", "scored"}  # written by users, by downloads, and in `test_rewards_score.py`
    assert set(values) == set(file_schemas.FORMATS) - elsewhere
    kinds = {"train", "eval", "rollout", "sft", "validation", "dpo", "held_out"}
    assert {line["kind"] for line in values["metrics"]} == kinds
    assert {line["event"] for line in values["event"]} >= {"run_start", "run_end", "pool", "sandbox_ready", "weights"}


def test_the_page_shows_how_to_check_a_file(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/reference/files.md").read_text(encoding="utf-8")
    (program,) = (block.text for block in blocks_of(page) if block.language == "python")
    monkeypatch.chdir(written)
    Path("metrics.schema.json").write_text(json.dumps(file_schemas.schema("metrics")))
    Path("runs/first").mkdir(parents=True)
    lines = Path("train/metrics.jsonl").read_text()
    Path("runs/first/metrics.jsonl").write_text(lines)
    exec(program, {})
    Path("runs/first/metrics.jsonl").write_text(lines.replace('"iteration"', '"round"'))
    with pytest.raises(ValidationError):
        exec(program, {})


READ_FROM_USERS = {"question", "dataset"}
"""Objects with further fields are valid."""


def branch(name: str, value: Any) -> dict[str, Any]:
    """Return the part of a schema that describes an object, in schemas of several kinds of objects."""
    whole = file_schemas.schema(name)
    parts = [whole, *whole.get("$defs", {}).values()] if "properties" not in whole else [whole]
    alone = [{**part, "$defs": whole.get("$defs", {})} for part in parts if "properties" in part]
    return next(part for part in alone if Draft202012Validator(part).is_valid(value))


@pytest.mark.parametrize("name", sorted(set(file_schemas.FORMATS) - {"table", "fetch", "own-question", "scored"}))
def test_a_schema_refuses_what_is_missing_of_another_type_or_unknown(name: str, values: Values) -> None:
    kinds = {
        value.get("kind", value.get("event")) if name in ("metrics", "event") else None: value for value in values[name]
    }
    for value in kinds.values():
        part = branch(name, value)
        for key in part.get("required", ()):
            assert errors(name, {other: value[other] for other in value if other != key}), f"without {key}"
        for key in part["properties"].keys() & value.keys():
            typed = part["properties"][key].keys() & {"type", "anyOf", "$ref", "const", "enum"}
            assert not typed or errors(name, {**value, key: b"of no JSON type"}), key
        assert bool(errors(name, {**value, "no_such_field": "text"})) is (name not in READ_FROM_USERS)


def test_what_users_and_downloads_write_is_checked() -> None:
    assert errors("table", {"item": 1}) and errors("table", [["item"]]) and errors("table", [{"item": [1]}])
    assert not errors("table", [{"item": "revenue", "2025": 1.5, "2024": None}])
    assert errors("own-question", {"answer": 1}) and not errors("own-question", {"question": "?", "mine": True})
    assert errors("dataset", {"evaluation_only": "false"}) and not errors("dataset", {"source": "my books"})
    assert errors("scored", {"id": "a"}) and errors("scored", {"id": "a", "reward": 1.0, "components": {}})
    assert errors("fetch", {}) and errors("question", {"id": "q1"})
