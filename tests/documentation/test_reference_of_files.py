"""The pages of files, metrics and events have all that the source writes and nothing else."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import file_schemas
import pytest
import recorded_events
import recorded_metrics
import yaml
from fixtures.file_checks import errors
from jsonschema import Draft202012Validator
from log_messages import ROOT, log_messages

from finqa_cli.completion_index import index
from finqa_cli.rollout import pooled_sandboxes
from finqa_cli.runs import run_nodes, run_notes
from finqa_cli.settings.schema import DECLARATIONS

PAGES = {
    name: (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8") for name in ("files", "metrics", "events")
}
EMITTERS = {"event", "_emit", "_tell", "_on_event", "on_event"}
"""Names of the functions that record an event."""


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


def literals(node: ast.expr, tree: ast.Module) -> Iterator[str]:
    """Yield the texts that an argument may be: its own, or those that are assigned to its name in the module."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        for each in ast.walk(tree):
            if isinstance(each, ast.Assign) and any(
                isinstance(one, ast.Name) and one.id == node.id for one in each.targets
            ):
                values = [each.value.body, each.value.orelse] if isinstance(each.value, ast.IfExp) else [each.value]
                yield from (one.value for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str))


def emitted() -> dict[str, set[str]]:
    """Names of the events in calls of the source, with the fields that these calls name."""
    found: dict[str, set[str]] = {}
    for folder in ("finqa", "finqa_cli", "plugins/finqa_plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for call in ast.walk(tree):
                name = getattr(call, "func", None)
                called = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
                if isinstance(call, ast.Call) and called in EMITTERS and call.args:
                    fields = {word.arg for word in call.keywords if word.arg}
                    for argument in call.args:
                        keys = argument.keys if isinstance(argument, ast.Dict) else []
                        fields |= {key.value for key in keys if isinstance(key, ast.Constant)}
                    for text in literals(call.args[0], tree):
                        if re.fullmatch(r"[a-z]+(_[a-z]+)*", text):
                            found.setdefault(text, set()).update(fields)
    return found


def test_the_events_of_the_page_are_those_of_the_source() -> None:
    types = {kind.__name__: file_schemas.schema_of(kind) for kind in recorded_events.EVENTS}
    known = {schema["properties"]["event"]["const"]: set(schema["properties"]) for schema in types.values()}
    calls = emitted()
    transitions = set(pooled_sandboxes.EVENTS.values()) | {"sandbox_replaced"}
    assert set(calls) | transitions == set(known)
    assert {*run_notes.ROUTINE, *run_nodes.FOLLOWED, *run_nodes.CHANGES} <= set(known)
    for name, fields in calls.items():
        assert fields <= known[name], name
    assert sorted(name for words in marks("events", "events") for name in words) == sorted(types)


def test_the_log_messages_of_the_page_are_those_of_the_source() -> None:
    when = yaml.safe_load((ROOT / "docs/_site/log_messages.yaml").read_text(encoding="utf-8"))
    logged = log_messages()
    assert len(logged) > 60 and {each.text for each in logged} == set(when)
    assert [each.place for each in logged if each.text == "{event}"] == ["engines/_http/usage.py"]
    shown = {level for words in marks("events", "messages") for level in words}
    assert {level for each in logged for level in each.level.split(" or ")} == shown


def metric_keys() -> set[str]:
    keys: set[str] = set()
    for line in recorded_metrics.LINES:
        schema = file_schemas.schema_of(line)
        keys |= set(schema["properties"]) - set(recorded_metrics.MetricsLine.model_fields)
    timing = file_schemas.schema_of(recorded_metrics.Timing)["properties"]
    return keys | {f"timing.{name}" for name in timing} | {"staleness_tokens_N"}


def test_each_metric_has_unit_and_advice_is_on_the_page_and_is_written_by_the_source() -> None:
    keys = metric_keys()
    of_types = {key.partition(".") for key in recorded_metrics.GUIDE if key[0].isupper()}
    assert {key for key in recorded_metrics.GUIDE if key[0].islower()} == keys
    assert all(
        key in file_schemas.schema_of(getattr(recorded_metrics, name))["properties"] for name, _, key in of_types
    )
    shown = {name for words in marks("metrics", "metrics") for name in words}
    own = set()
    for name in shown:
        schema = file_schemas.schema_of(getattr(recorded_metrics, name))
        own |= {f"timing.{key}" if name == "Timing" else key for key in schema["properties"]}
    assert own | {"staleness_tokens_N", "timing"} >= keys
    source = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("finqa_cli", "plugins/finqa_plugins")
        for path in (ROOT / folder).rglob("*.py")
    )
    fields = {
        field.name
        for kind in (recorded_metrics.EvalReport, recorded_metrics.GroupStatistics)
        for field in dataclasses.fields(kind)
    }
    for key in keys - fields - {"staleness_tokens_N"}:
        name = key.removeprefix("timing.")
        assert re.search(rf"""["']{name}["']|\b{name}[=:]""", source), key


def test_advice_names_real_options_and_settings() -> None:
    advice = "\n".join(text for _, text in recorded_metrics.GUIDE.values())
    flags = set(re.findall(r"`(--[a-z-]+)", advice))
    known = json.dumps(index())
    assert flags and not [flag for flag in flags if f'"{flag}"' not in known]
    settings = set(re.findall(r"`((?:train|generation|pool|eval)\.\w+)", advice))
    assert settings and settings <= set(DECLARATIONS)
    for target in set(re.findall(r"\]\(\.\./([^)#]+)", advice)):
        assert (ROOT / "docs" / target).is_file(), target
