"""Base of the types that describe files, and JSON Schemas (draft 2020-12) generated from them.

A file that a dataclass or a pydantic model of finqa writes is described by that type. Other files are described by
subclasses of `Written`, in the modules beside this one.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

ABSENT: Any = None
"""Default of a field that may be absent."""


class Written(BaseModel):
    """An object that finqa writes. It has no other fields.

    Attributes:
        also: Dataclasses of finqa whose fields are in the same object.
    """

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    also: ClassVar[tuple[type, ...]] = ()


class WrittenSchema(GenerateJsonSchema):
    """Generates the schema of what is written: no field of finqa's own types is absent, and no field has a title."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """No field has a title, because it would only repeat the name."""
        return False

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Return the schema of a dataclass, which `asdict` writes."""
        found = super().dataclass_schema(schema)
        for field in found["properties"].values():
            field.pop("default", None)
        return _complete(found, schema["cls"])

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model. A subclass of `Written` has the fields of `also` too, which it may override."""
        found, cls = super().model_schema(schema), schema["cls"]
        if not issubclass(cls, Written):
            return _complete(found, cls)
        parts = [self.resolve_ref_schema(self.generate_inner(TypeAdapter(also).core_schema)) for also in cls.also]
        for name, field in found.get("properties", {}).items():
            field.pop("default", None)
            if "$ref" not in field or "description" in field:
                field["description"] = _description(cls, name)
        joined = [*parts, found]
        properties = {name: field for part in joined for name, field in part.get("properties", {}).items()}
        required = {name: None for part in joined for name in part.get("required", ())}
        about = one_line(cls.__doc__)
        return {**found, "description": about, "properties": properties, "required": list(required)}


def _description(cls: type[BaseModel], name: str) -> str:
    """Return the description of a field, which a subclass that narrows its type need not repeat."""
    owners = [each.model_fields[name] for each in cls.__mro__ if name in getattr(each, "model_fields", {})]
    return one_line(next((field.description for field in owners if field.description), ""))


def _complete(found: JsonSchemaValue, cls: type) -> JsonSchemaValue:
    """Return the schema of a type of finqa with all fields required, and with the descriptions in its docstrings."""
    for name, text in attribute_docs(cls, list(found["properties"])).items():
        found["properties"][name].setdefault("description", text)
    rest = {"required": list(found["properties"]), "additionalProperties": False}
    return {**found, "description": one_line(cls.__doc__), **rest}


def one_line(text: str | None) -> str:
    """Return the first paragraph of a text as one line."""
    return " ".join((text or "").strip().partition("\n\n")[0].split())


def attribute_docs(cls: type, names: list[str]) -> dict[str, str]:
    """Return the descriptions of fields, from the sections `Attributes:` of the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    known = "|".join(map(re.escape, names))
    for each in reversed(cls.__mro__):
        section = (each.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        for name, text in re.findall(rf"^ +({known}): (.*?)(?=^ +(?:{known}): |\Z)", section, re.M | re.S):
            found[name] = re.sub(r"\bNone\b", "null", one_line(text))
    return found
