"""The pages of files, metrics and events have all that the source writes and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import file_schemas
import pytest
import recorded_metrics
import schema_pages
import source_lists
from fixtures.file_checks import errors
from jsonschema import Draft202012Validator
from source_lists import ROOT

from finqa_cli.completion_index import index
from finqa_cli.rollout import pooled_sandboxes
from finqa_cli.runs import run_nodes, run_notes
from finqa_cli.settings.schema import DECLARATIONS

PAGES = {
    name: (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8") for name in ("files", "metrics", "events")
}


def marks(page: str, kind: str) -> list[list[str]]:
    """Words of the comments of a kind on a page."""
    return [words.split() for words in re.findall(rf"^<!-- {kind}: (.+?) -->$", PAGES[page], re.MULTILINE)]


def objects(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every part of a schema that describes an object with known fields."""
    if isinstance(node, dict):
        if "properties" in node and node.get("type") == "object":
            yield node
        for value in node.values():
            yield from objects(value)
    elif isinstance(node, list):
        for value in node:
            yield from objects(value)


@pytest.mark.parametrize("name", list(file_schemas.FORMATS))
def test_a_schema_is_valid_closed_and_described(name: str) -> None:
    schema = file_schemas.schema(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema") and schema["$id"] and schema["title"] and schema["description"]
    numbers_of_plugins = {"An iteration of `finqa train`", "An optimizer step of `finqa dpo`"}
    for part in objects(schema):
        is_open = name in ("own-question", "question", "dataset")
        of_losses = part["description"].partition(".")[0] in numbers_of_plugins
        assert part.get("additionalProperties", True) == (
            True if is_open else {"type": "number"} if of_losses else False
        )
        for field, described in {**part["properties"], **part.get("patternProperties", {})}.items():
            text = described.get("description") or schema["$defs"][described["$ref"].rpartition("/")[2]]["description"]
            assert text.endswith((".", ")", "`")) or ". " in text, (field, text)


def test_every_schema_is_on_a_page_and_every_example_is_valid() -> None:
    shown = {words[0] for page in PAGES for kind in ("fields", "schema") for words in marks(page, kind)}
    assert shown >= set(file_schemas.FORMATS) - {"compared-run"}, "of which `comparison` shows the fields"
    examples = [
        (name, json.loads(text))
        for page in PAGES.values()
        for name, text in re.findall(r"^<!-- example: (\S+) -->\n```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ]
    assert len(examples) >= 10
    for name, value in examples:
        assert not errors(name, value), name


def table(page: str, kind: str) -> list[str]:
    """Rows of all tables of a kind on a page."""
    named = [path for words in marks(page, kind) for path in words]
    return [row for words in marks(page, kind) for row in schema_pages.table_of(kind, words, named).splitlines()[2:]]


def test_every_event_of_the_source_is_in_one_table_and_every_known_name_is_an_event() -> None:
    names = [row.partition("`")[2].partition("`")[0] for row in table("events", "events")]
    assert len(names) > 25 and sorted(names) == sorted(event.name for event in source_lists.events())
    transitions = set(pooled_sandboxes.EVENTS.values()) | {"sandbox_replaced"}
    assert {*transitions, *run_notes.ROUTINE, *run_nodes.FOLLOWED, *run_nodes.CHANGES} <= set(names)


def test_every_log_message_of_the_source_is_on_the_page_with_what_its_comment_says() -> None:
    rows = table("events", "messages")
    texts = {message.text for message in source_lists.log_messages()}
    assert len(texts) > 60 and texts <= {row.split("| ")[1].strip().replace("\\|", "|") for row in rows}
    assert any(
        row.startswith("| request repeated |") and "the request is sent again after `wait_s`" in row for row in rows
    )


MODULE = """
class Napped(RunEvent):
    \"\"\"It slept.\"\"\"

    event: Literal["napped"]
    seconds: NotRequired[float]
    \"\"\"Seconds of sleep.\"\"\"

def pause(folder, log):
    # A reason, which is not shown.
    # Event: A pause begins, if `train.pause_s`
    # is not 0.
    folder.event("paused", seconds=1.0)
    if folder:
        folder.event("resumed", **{})
        # Log: Each time.
        log.info(f"sleeping for {folder.seconds}", seconds=1.0)
"""


def test_a_new_event_or_message_needs_its_declaration_or_call_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = "from typing import Literal, NotRequired\nfrom finqa_cli.types.run_events import RunEvent\n"
    (tmp_path / "napping").mkdir()
    (tmp_path / "napping/nap.py").write_text(imports + MODULE)
    monkeypatch.setattr(source_lists, "ROOT", tmp_path)
    monkeypatch.setattr(source_lists, "PARTS", ("napping",))
    monkeypatch.syspath_prepend(tmp_path)
    source_lists._modules.cache_clear()
    try:
        events = {event.name: file_schemas.schema_of(event.model) for event in source_lists.events.__wrapped__()}
        (message,) = source_lists.log_messages()
    finally:
        source_lists._modules.cache_clear()
    assert {name: schema["description"] for name, schema in events.items()} == {
        "napped": "It slept.",
        "paused": "A pause begins, if `train.pause_s` is not 0.",
        "resumed": "It is recorded by `nap.py`.",
    }
    assert events["napped"]["properties"]["seconds"]["description"] == "Seconds of sleep."
    assert "seconds" not in events["napped"]["required"] and "seconds" in events["paused"]["required"]
    assert events["paused"]["additionalProperties"] is False and events["resumed"]["additionalProperties"] is True
    assert (message.text, message.level, message.fields) == ("sleeping for {seconds}", "info", ("seconds",))
    assert message.when == "Each time."


def test_advice_names_real_options_and_settings() -> None:
    advice = "\n".join(text for _, text in recorded_metrics.GUIDE.values())
    flags = set(re.findall(r"`(--[a-z-]+)", advice))
    known = json.dumps(index())
    assert flags and not [flag for flag in flags if f'"{flag}"' not in known]
    settings = set(re.findall(r"`((?:train|generation|pool|eval)\.\w+)", advice))
    assert settings and settings <= set(DECLARATIONS)
    for target in set(re.findall(r"\]\(\.\./([^)#]+)", advice)):
        assert (ROOT / "docs" / target).is_file(), target
