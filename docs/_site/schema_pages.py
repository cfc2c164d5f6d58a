"""MkDocs hook: publishes the JSON Schemas, and writes the tables of the pages of files, events and metrics from them.

A page of `docs/reference` names a table by a comment on a line of its own:

    <!-- fields: NAME [TYPE] -->   fields of a schema, or of one type in it, with a link to the schema
    <!-- schema: NAME -->          only the link
    <!-- schemas -->               all schemas with the files that they describe
    <!-- metrics: TYPE -->         keys of a type in `recorded_metrics`, with units and advice
    <!-- events: PATH ... -->      events of modules below these paths; `*`: all that no other table has
    <!-- messages: LEVEL ... -->   log messages of these levels
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import recorded_metrics
from file_schemas import FORMATS, schema, schema_of
from source_lists import EventType, events, log_messages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

FOLDER = "reference"
COMMENT = re.compile(r"^<!-- (fields|schemas?|metrics|events|messages):? ?([^\n]*?) -->$", re.MULTILINE)
MOST_ROWS = 8
"""Longest table of fields that is not folded."""

EVENT_KEYS = ("schema_version", "event", "time")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the schemas, each as a file of its own."""
    from mkdocs.structure.files import File  # here, because tests make tables without MkDocs

    for name in FORMATS:
        text = json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"
        files.append(File.generated(config, f"{FOLDER}/{address(name)}", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the comments that name tables by the tables."""
    if not page.file.src_uri.startswith(f"{FOLDER}/"):
        return markdown
    named = [path for kind, names in COMMENT.findall(markdown) if kind == "events" for path in names.split()]
    return COMMENT.sub(lambda found: table_of(found[1], found[2].split(), named), markdown)


def address(name: str) -> str:
    """Return the address of a schema, relative to the pages of this folder."""
    return f"schemas/{name}.schema.json"


def link(name: str, before: str = "Schema: ") -> str:
    """Return a link to a schema."""
    return f"{before}[{name}.schema.json]({address(name)})"


def table_of(kind: str, names: list[str], named: list[str]) -> str:
    """Return the table that a comment names.

    Args:
        kind: First word of the comment.
        names: Its other words.
        named: Paths in the comments `events` of the page.

    Raises:
        KeyError, AttributeError: There is no such schema or type.
    """
    match kind:
        case "fields":
            whole = schema(names[0])
            part = whole["$defs"][names[1]] if names[1:] else whole
            rows = [[f"`{each.path}`", each.type_text, each.text] for each in walk(part, whole.get("$defs", {}))]
            return f"{folded(markdown_table(['field', 'type', 'meaning'], rows), len(rows))}\n\n{link(names[0])}"
        case "schema":
            return link(names[0])
        case "schemas":
            return markdown_table(["file", "schema"], [[form.title, link(name, "")] for name, form in FORMATS.items()])
        case "metrics":
            rows = [row for name in names for row in metric_rows(getattr(recorded_metrics, name))]
            return markdown_table(["key, unit", "meaning", "signs of trouble, and what to do"], rows)
        case "events":
            shown = [each for each in events() if _longest(each.place, named) in names]
            return markdown_table(["event", "when it is recorded, and its fields"], list(map(event_row, shown)))
    messages = sorted(log_messages(), key=lambda message: message.text.lower())
    when = {message.text: message.when for message in messages if message.when}
    rows = [
        [message.text, ", ".join(f"`{name}`" for name in message.fields), when.get(message.text, "")]
        for message in messages
        if set(message.level.split(" or ")) & set(names)
    ]
    return markdown_table(["message", "fields", "when"], list(map(list, dict.fromkeys(map(tuple, rows)))))


def _longest(place: str, paths: list[str]) -> str:
    """Return the longest of the paths that a module is below; `*` if there is none."""
    return max((path for path in paths if place.startswith(path)), key=len, default="*")


def metric_rows(kind: type) -> Iterator[list[str]]:
    """Yield the rows of the keys of a type, without those of all lines."""
    found, guide = schema_of(kind), recorded_metrics.GUIDE
    for each in walk(found, found.get("$defs", {}), deep=False):
        key = f"timing.{each.path}" if kind is recorded_metrics.Timing else each.path
        if key not in recorded_metrics.MetricsLine.model_fields:
            unit, trouble = guide.get(f"{kind.__name__}.{key}") or guide.get(key, ("", ""))
            yield [f"`{key}`" + (f"<br>{unit}" if unit else ""), each.text, trouble]


def event_row(event: EventType) -> list[str]:
    """Return the row of an event: its name, when it is recorded, and its fields."""
    found = schema_of(event.model)
    fields = [each for each in walk(found, found.get("$defs", {}), deep=False) if each.path not in EVENT_KEYS]
    texts = [f"`{each.path}`{' (optional)' * each.optional}: {each.text}" for each in fields]
    return [f"`{found['properties']['event']['const']}`", "<br>".join((found["description"], *texts))]


@dataclass(frozen=True)
class FieldRow:
    """One field of a schema.

    Attributes:
        path: Path from the whole object, such as `turns[].text`.
        type_text: Type in words.
        optional: It may be absent.
        text: Description.
    """

    path: str
    type_text: str
    optional: bool
    text: str


def walk(
    node: Mapping[str, Any],
    defs: Mapping[str, Any],
    *,
    deep: bool = True,
    prefix: str = "",
    seen: dict[str, str] | None = None,
) -> Iterator[FieldRow]:
    """Yield the fields of an object, and those of objects in it. A type that occurs twice is described once.

    Args:
        node: Schema of the object; of an array: the fields of its items.
        defs: Definitions of the whole schema.
        deep: Whether fields of objects in it follow.
        prefix: Path of the object.
        seen: Definition -> path of the field at which it is described.
    """
    seen = {} if seen is None else seen
    if node.get("type") == "array":
        yield FieldRow("[]", type_text(node["items"], defs), False, node.get("description", ""))
    for name, field in node.get("properties", {}).items():
        path = f"{prefix}{name}"
        inner, steps = _object(field, defs)
        optional = name not in node.get("required", ())
        described = seen.get(inner, "")
        words = f"{type_text(field, defs)}{', optional' * optional}{f', as `{described}`' * bool(described)}"
        yield FieldRow(path, words, optional, field.get("description") or defs[inner]["description"])
        if inner and deep and not described:
            seen[inner] = path
            yield from walk(defs[inner], defs, prefix=f"{path}{steps}.", seen=seen)
    for pattern, field in node.get("patternProperties", {}).items():
        name = re.sub(r"\[0-9\]\+|\.\+", "N" if "[" in pattern else "NAME", pattern.strip("^$"))
        name = f"{name}NAME" if name.endswith("_") else name
        yield FieldRow(f"{prefix}{name}", f"{type_text(field, defs)}, optional", True, field["description"])


def _object(field: Mapping[str, Any], defs: Mapping[str, Any]) -> tuple[str, str]:
    """Return the only definition of an object that a field contains, and the steps to it; empty if there is none."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return (name, "") if "properties" in defs[name] else ("", "")
    if "anyOf" in field:
        found = [each for each in (_object(part, defs) for part in field["anyOf"]) if each[0]]
        return found[0] if len(found) == 1 else ("", "")
    for key, step in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(field.get(key), Mapping):
            name, steps = _object(field[key], defs)
            return name, f"{step}{steps}" if name else ""
    return "", ""


def type_text(field: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """Return the type of a field in words."""
    if "$ref" in field:
        return type_text(defs[field["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(type_text(part, defs) for part in field["anyOf"]))
    if "const" in field or "enum" in field:
        values = field.get("enum", [field.get("const")])
        return " or ".join(f"`{each if isinstance(each, str) else json.dumps(each)}`" for each in values)
    kind = field.get("type", "any")
    if kind == "array":
        if "prefixItems" in field:
            return f"array of {len(field['prefixItems'])} {type_text(field['prefixItems'][0], defs)}s"
        return f"array of {type_text(field['items'], defs)}" if field.get("items") else "array"
    if kind == "object" and isinstance(field.get("additionalProperties"), Mapping):
        return f"object of {type_text(field['additionalProperties'], defs)}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def folded(table: str, rows: int) -> str:
    """Return a table, folded if it is long, so that the page stays short."""
    if rows <= MOST_ROWS:
        return table
    return f'<details markdown="1"><summary>{rows} fields</summary>\n\n{table}\n\n</details>'


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
