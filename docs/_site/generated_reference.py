"""MkDocs hook: a page for each command and a page of all components, made from the application at each build.

Commands come from the Typer application, components and their options from the registry. The pages are not files of the
repository, so they cannot be out of date. A command, an option or a component without a text fails the build.

The header of the site shows the version: as a selector if mike builds one of several versions, else next to the name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from pydantic import BaseModel

from finqa_cli import __version__
from finqa_cli.app import COMMANDS, PANELS, LazyGroup
from finqa_cli.commands.plugins import option_flag
from finqa_cli.commands.shared.command_line import declaration_of
from finqa_cli.extend import Component, Kind, registry
from finqa_cli.extend.registry import CONTRACTS
from finqa_cli.settings.declarations import PREFIX
from finqa_cli.settings.schema import DECLARATIONS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

OVERVIEW = "reference/commands.md"
"""The page that the pages of commands follow in the navigation."""

COMPONENTS = "reference/components.md"

COMMAND = re.compile(rf"`finqa (?P<name>{'|'.join(COMMANDS)})\b[^`]*`")
KIND = re.compile(rf"^\| (?P<code>`(?P<name>{'|'.join(CONTRACTS)})`) \|", re.MULTILINE)

HEADER = "---\nsearch:\n  boost: 0.5\n---\n\n"
"""In the results of a search, guides come before generated pages."""

CODE = re.compile(
    r"`[^`]+`"
    r"|(?<![\w/.-])--?[a-zA-Z][\w-]*(?:=[\w./:,-]*\w| \d[\d.]*\b| [A-Z_]{2,}\b| [\w.]+\.[A-Za-z]+=[A-Z]+)?"  # flags
    r"|(?<![\w/])(?:\.?/)?[\w-]+(?:/[\w-]+)*\.(?:jsonl?|toml|yaml|html|md|py|env|csv|txt|tar\.gz)\b"  # files
    r"|\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b"  # variables
    r"|(?<![\w/.-])(?:[a-z_]+\.)*[a-z0-9]+(?:_[a-z0-9]+)+(?:\.[a-z_]+)*\b"  # settings and names
    r"|</?[\w.-]+>"  # tags
    r"|\bfinqa (?:" + "|".join(COMMANDS) + r")\b"
)
"""Parts of a text for the terminal that are code on a page."""

FLAGS = re.compile(r"^(?:--?[\w-]+(?:, | / |; | |$))+")
"""The flags of an option in the help, which come before its type."""

WORDS = {"int": "integer", "float": "number", "str": "text", "int range": "integer", "float range": "number"}
TYPES = {"boolean": "yes or no", "string": "text", "object": "mapping"}
BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
"""Keys of JSON schemas, with their meaning on the page."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version in the header."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike", "default": "latest", "alias": True}
    else:
        config.site_name = f"{config.site_name} {__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and those of commands to the navigation.

    Raises:
        PluginError: A command, an option or a component has no text.
    """
    group = LazyGroup(name="finqa")
    pages = {name: command_page(name, group.get_command(None, name)) for name in COMMANDS}
    for name, text in pages.items():
        files.append(File.generated(config, _address(name), content=text))
    files.append(File.generated(config, COMPONENTS, content=components_page(registry().components())))
    section = _section_of(OVERVIEW, config.nav or [])
    section += [{panel: [_address(name) for name in names]} for panel, names in PANELS.items()]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link some pages to the generated ones. In the repository, where these do not exist, they have no such links."""
    address = page.file.src_uri
    if address in (OVERVIEW, "reference/python-api.md"):
        return COMMAND.sub(lambda found: f"[{found[0]}](commands/{found['name']}.md)", markdown)
    if address == "plugins.md":
        return KIND.sub(lambda found: f"| [{found['code']}]({COMPONENTS}#{found['name']}) |", markdown)
    return markdown


def command_page(name: str, command: Any) -> str:
    """Return the page of a command, or of a group with its commands.

    Raises:
        PluginError: A command, an argument or an option has no help.
    """
    context = typer.Context(command, info_name=f"finqa {name}")
    return HEADER + "\n".join(_command_lines(command, context, level=1))


def components_page(components: Sequence[Component]) -> str:
    """Return the page of components.

    Raises:
        PluginError: A component has no summary, or an option has no description.
    """
    lines = [
        "# Components and options",
        "",
        "All components of finqa that a setting chooses by name, with their options. `finqa plugins` lists them and "
        "those of other packages, with what is missing on your machine; `finqa plugins show NAME` has the options of "
        "one. An option with a flag has it below its name. Components that are chosen by a path or an address, such as "
        "an environment in a Python file or `ray:vllm`, are in [Own environments](../own-environments.md) and "
        "[Several machines](../guides/several-machines.md).",
        "",
    ]
    for kind in CONTRACTS:
        chosen = [each for each in components if each.kind == kind]
        lines += [f"## {kind}", "", *_kind_lines(kind, chosen)]
        for component in chosen:
            lines += _component_lines(component)
    return HEADER + "\n".join(lines)


def _command_lines(command: Any, context: typer.Context, level: int) -> Iterator[str]:
    """Yield the lines of a command and of its subcommands, with headings from this level on."""
    path = context.command_path
    if not command.help:
        raise PluginError(f"{path} has no help: write a docstring of its function, or help= of its group.")
    inner = getattr(command, "commands", {})
    yield from (f"{'#' * level} {path}", "")
    if not inner or command.invoke_without_command:
        yield from ("```text", command.get_usage(context).removeprefix("Usage: "), "```", "")
    yield from (*_paragraphs(command.help), *_paragraphs(command.epilog or ""))
    panels: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        if "--help" not in parameter.opts and not getattr(parameter, "hidden", False):
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append(_parameter_row(parameter, context))
    for panel, rows in sorted(panels.items(), key=lambda pair: pair[0] == "General"):
        heading = f"## {panel}" if level == 1 and not inner else f"**{panel}**"
        yield from (heading, "", "| name | meaning |", "| --- | --- |", *rows, "")
    for name, each in inner.items():
        yield from _command_lines(each, typer.Context(each, info_name=name, parent=context), level + 1)


def _parameter_row(parameter: Any, context: typer.Context) -> str:
    """Return the row of an argument or option: names, then help, type, default, setting and variables."""
    if not parameter.help:
        raise PluginError(f"{context.command_path} {parameter.opts[0]} has no help: give help= where it is declared.")
    written, text = parameter.get_help_record(context)
    about, _, details = text.partition("  [")
    if parameter.param_type_name == "argument":
        name, _, kind = written.partition(" ")
        names = [name]
    else:
        names = [*parameter.opts, *parameter.secondary_opts]
        kind = FLAGS.sub("", written)
    declaration = declaration_of(parameter.name)
    variables = [parameter.envvar] if isinstance(parameter.envvar, str) else [*(parameter.envvar or ())]
    if declaration is not None:
        path = declaration.path
        variables += filter(None, (PREFIX + path.replace(".", "__").upper(), declaration.about.variable))
    setting = f"setting `{declaration.path}`" if declaration else ""
    named = f"variable {' or '.join(f'`{each}`' for each in variables)}" if variables else ""
    lines = ((_type(kind), _details(details.removesuffix("]"))), (setting, named))
    return _row(names, [prose(about), *(", ".join(filter(None, line)) for line in lines)])


def _kind_lines(kind: Kind, components: Iterable[Component]) -> Iterator[str]:
    """Yield how components of a kind are chosen, how their options are set, and their contract."""
    declaration = DECLARATIONS.get(f"{kind}.name") or DECLARATIONS.get(f"{kind}s")
    flag = declaration.about.flags if declaration else "--set codec.options.call_format"
    choice = f"{flag} NAME" if declaration and flag else f"{flag or f'--set {kind}.name'}=NAME"
    contracts = " or ".join(f"[`{each.__name__}`](contracts.md#{_path(each)})" for each in CONTRACTS[kind])
    options = f" Options: `{option_flag(kind, 'TRACKER')}`." if any(each.config for each in components) else ""
    yield from (f"Chosen by `{choice}`.{options} Contract: {contracts}.", "")


def _component_lines(component: Component) -> Iterator[str]:
    name = f"{component.kind} {component.name}"
    if not component.summary:
        raise PluginError(f"{name} has no text: give summary= of its Component.")
    yield from (f"### {component.name} {{#{component.kind}-{component.name}}}", "")
    yield from (f"{prose(_sentence(component.summary))}.", "")
    if component.extra:
        yield from (f"Packages: `pip install 'finqa[{component.extra}]'`", "")
    if component.venv is not None:
        yield from (f"Packages, in a virtual environment of their own: `finqa setup {component.name}`", "")
    model = registry().config_class(component)
    if model is None:
        yield from ("It has no options.", "")
        return
    yield from _paragraphs((model.__doc__ or "").partition("\nAttributes:")[0])
    yield from ("| option | meaning |", "| --- | --- |", *_option_rows(component, model), "")


def _option_rows(component: Component, model: type[BaseModel]) -> Iterator[str]:
    schema = model.model_json_schema()
    for option, field in model.model_fields.items():
        if option in component.given:
            continue
        if not field.description:
            owner = f"{model.__module__}:{model.__qualname__}"
            raise PluginError(f"{component.kind} {component.name}: option {option} of {owner} has no description.")
        about = schema["properties"][option]
        default = "required" if field.is_required() else _default(about, field.description)
        declaration = DECLARATIONS.get(f"{component.kind}.options.{option}")
        flags = declaration.about.flags.split() if declaration else []
        facts = ", ".join(filter(None, (_schema_type(about, schema.get("$defs", {})), default)))
        yield _row([option, *flags], [f"{prose(_sentence(field.description))}.", facts])


def prose(text: str) -> str:
    """Return a text for the terminal as Markdown in one line: code is marked, everything else is literal."""
    parts, end = [], 0
    for found in CODE.finditer(text):
        parts += [_literal(text[end : found.start()]), f"`{found[0].strip('`')}`"]
        end = found.end()
    return " ".join("".join([*parts, _literal(text[end:])]).split())


def _sentence(text: str) -> str:
    """Return a text with a capital, unless it begins with a name in code, and without a full stop."""
    word = not CODE.match(text) and text[1:2].islower()  # not vLLM
    return (text[0].upper() + text[1:] if word else text).rstrip(".")


def _literal(text: str) -> str:
    return re.sub(r"[&<>|{}\[\]*_#\\]", lambda found: f"&#{ord(found[0])};", text)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a help text: paragraphs, and examples as blocks of code."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        example = re.match(r"(Examples?|Smoke test): (.+?)(?:\.? (?=Exit codes:)|\.?$)", paragraph, re.DOTALL)
        if example:
            yield from (f"{example[1]}:", "", "```text", *example[2].split("; "), "```", "")
            paragraph = paragraph[example.end() :]
        if paragraph:
            yield from (prose(paragraph).replace("Exit codes:", "[Exit codes](../exit-codes.md):"), "")


def _row(names: Iterable[str], parts: Iterable[str]) -> str:
    """Return a table row with two cells, which fits a narrow screen."""
    return f"| {'<br>'.join(f'`{name}`' for name in names)} | {'<br>'.join(filter(None, parts))} |"


def _type(metavar: str) -> str:
    """Return the type of a parameter in the words of the other pages."""
    inner = metavar.removeprefix("<").removesuffix(">")
    if "|" in inner:
        return " or ".join(f"`{choice}`" for choice in inner.split("|"))
    if found := re.fullmatch(r"list\[(\w+)\]", inner):
        return f"list of {WORDS.get(found[1].lower(), found[1].lower())}"
    return WORDS.get(inner, inner if inner == "path" or not inner else f"`{metavar}`")


def _details(text: str) -> str:
    """Return the default and the limits in brackets at the end of a help text."""
    text = re.sub(r"default: \((.+?)\)(?=;|$)", r"default: \1", text)  # Typer puts a text in parentheses
    text = re.sub(r"(\S+)<=x<=(\S+)", r"from \1 to \2", text)
    parts = re.split(r"; (?=required$|from \S+ to|[≥≤]|default: )", text.replace("x>=", "≥ ").replace("x<=", "≤ "))
    return ", ".join(
        f"default {_code(part.removeprefix('default: '))}" if part.startswith("default: ") else part for part in parts
    )


def _code(value: str) -> str:
    """Return a value as code, and a description of it as text."""
    return prose(value) if " " in value else f"`{value}`"


def _schema_type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return type and bounds of a JSON schema in words."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
        return f"mapping with {', '.join(f'`{name}`' for name in schema['properties'])}"
    if "anyOf" in schema:
        known = (each for each in schema["anyOf"] if each != {"type": "null"})
        return " or ".join(_schema_type(each, definitions) for each in known)
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(f"`{value}`" for value in values)
    kind = {"path": "path", "password": "secret text"}.get(schema.get("format", ""), "")
    kind = kind or TYPES.get(schema["type"], schema["type"])
    if kind == "array":
        inner = _schema_type(schema.get("items") or schema["prefixItems"][0], definitions)
        inner = re.sub(r"^(integer|number|text)", r"\1s", inner)
        kind = f"list of {schema['maxItems']} {inner}" if "maxItems" in schema else f"list of {inner}"
    if {"minimum", "maximum"} <= schema.keys():
        return f"{kind} from {schema['minimum']:g} to {schema['maximum']:g}"
    return " ".join(
        [kind, " and ".join(text.format(schema[key]) for key, text in BOUNDS.items() if key in schema)]
    ).strip()


def _default(schema: Mapping[str, Any], description: str) -> str:
    """Return the default in words; empty if it is computed or empty, and the description says what that means."""
    value = schema.get("default")
    if isinstance(value, bool):
        return f"default {'yes' if value else 'no'}"
    if value in (None, "", [], {}):
        explained = re.search(r"default|unset|empty", description, re.IGNORECASE)
        empty = value is not None or schema.get("type") == "object"  # made by a factory
        return "" if explained else "default empty" if empty else "default unset"
    return f"default `{value if isinstance(value, str) else json.dumps(value)}`"


def _address(command: str) -> str:
    return f"{OVERVIEW.removesuffix('.md')}/{command}.md"


def _path(contract: type) -> str:
    return f"finqa_cli.contracts.{contract.__name__}"


def _section_of(page: str, navigation: list[Any]) -> list[Any]:
    """Return the list of the navigation that contains a page; a new one if none does."""
    for entry in navigation:
        if entry == page:
            return navigation
        for inner in entry.values() if isinstance(entry, dict) else ():
            if isinstance(inner, list) and (found := _section_of(page, inner)):
                return found
    return []
