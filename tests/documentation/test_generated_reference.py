"""The generated reference: each command, option and component, and the public Python names, are on their pages."""

from __future__ import annotations

import html
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
import typer
import typer.main
from pydantic import BaseModel, Field

import finqa
from finqa_cli import __version__, contracts, extend, types
from finqa_cli.app import COMMANDS, LazyGroup, app
from finqa_cli.extend import Component, hookspecs, registry
from finqa_cli.settings.schema import DECLARATIONS

pytest.importorskip("material", reason="the site needs finqa[docs]: make docs installs it")


def page(site: Path, address: str) -> str:
    return (site / address / "index.html").read_text(encoding="utf-8")


def plain(words: str) -> str:
    """A text without marks of code, in one line."""
    return " ".join(words.replace("`", "").split())


def text(markup: str) -> str:
    """The words of a part of a page."""
    return plain(html.unescape(re.sub(r"<[^>]+>", "", markup.replace("<br", " <br"))))


def sections(markup: str) -> dict[str, str]:
    """Title or id of each heading, and the part of the page up to the next one."""
    found: dict[str, str] = {}
    for part in re.split(r"(?=<h[1-6] id=)", markup)[1:]:
        heading = re.match(r'<h[1-6] id="([^"]*)".*?>(.*?)<a class="headerlink"', part, re.DOTALL)
        assert heading, part[:200]
        found[heading[1]] = part
        found.setdefault(text(heading[2]), part)
    return found


def rows(markup: str) -> dict[str, str]:
    """First cell of each row as its codes, one after the other, and the words of the second cell."""
    cells = re.findall(r"<tr>\s*<td>(.*?)</td>\s*<td>(.*?)</td>", markup, re.DOTALL)
    return {" ".join(re.findall(r"<code>(.*?)</code>", name)): text(meaning) for name, meaning in cells}


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Each command with its full name, groups included."""
    yield name, command
    for inner, each in getattr(command, "commands", {}).items():
        yield from leaves(f"{name} {inner}", each)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_on_its_page_with_all_arguments_and_options(name: str, site: Path) -> None:
    markup = page(site, f"reference/commands/{name}")
    parts = sections(markup)
    for path, command in leaves(f"finqa {name}", LazyGroup(name="finqa").get_command(None, name)):
        part = markup if path == f"finqa {name}" else parts[path]
        assert plain(command.help.partition("\n\n")[0]) in text(part), path
        known = rows(part)
        for parameter in command.params:
            is_argument = parameter.param_type_name == "argument"
            names = [parameter.display_name_raw] if is_argument else [*parameter.opts, *parameter.secondary_opts]
            written = next(row for row in known if row.rstrip(".").split(" ") == names)
            about, meaning = parameter.help.partition("  [")[0], known[written]
            assert plain(about) in meaning, (path, names)
            declaration = DECLARATIONS.get(parameter.name.replace("__", "."))
            default = parameter.default if isinstance(parameter.default, (int, float, str)) else ""
            shown = parameter.show_default if isinstance(parameter.show_default, str) else default
            if declaration is not None:
                shown = declaration.shown_default
                variables = {f"FINQA_{declaration.parameter.upper()}", declaration.about.variable or "FINQA"}
                assert all(variable in meaning for variable in variables), (path, names)
            if shown not in ("", False, True):
                assert f"default {plain(str(shown))}" in meaning, (path, names)


def test_options_of_every_command_are_on_the_page_of_commands(site: Path) -> None:
    markup = text(page(site, "reference/commands"))
    root = typer.main.get_command(app)
    assert not [option for each in root.params for option in each.opts if f"{option} " not in markup]


@pytest.mark.parametrize("component", registry().components(), ids=lambda each: f"{each.kind}-{each.name}")
def test_a_component_is_on_the_page_with_all_options(component: Component, site: Path) -> None:
    part = sections(page(site, "reference/components"))[f"{component.kind}-{component.name}"]
    assert plain(component.summary[1:]) in text(part)
    assert not component.extra or f"finqa[{component.extra}]" in text(part)
    model = registry().config_class(component)
    known = {row.split()[0]: (row, meaning) for row, meaning in rows(part).items()}
    assert list(known) == ([] if model is None else list(model.model_fields))
    for name, field in () if model is None else model.model_fields.items():
        row, meaning = known[name]
        assert plain((field.description or "?")[1:].rstrip(".")) in meaning, name
        declaration = DECLARATIONS.get(f"{component.kind}.options.{name}")
        assert declaration is None or declaration.about.flags.split()[0] in row.split()
        if isinstance(field.default, (int, float, str)) and not isinstance(field.default, bool) and field.default != "":
            assert f"default {field.default}" in meaning, name
        for limit in field.metadata:
            for mark, attribute, word in (("≥", "ge", "from"), (">", "gt", ">"), ("≤", "le", "to"), ("<", "lt", "<")):
                if (bound := getattr(limit, attribute, None)) is not None:
                    assert f"{mark} {bound}" in meaning or f"{word} {bound:g}" in meaning, name


def test_pages_link_to_the_generated_ones(site: Path) -> None:
    for name in COMMANDS:
        assert f'href="{name}/"' in page(site, "reference/commands"), name
    for kind in hookspecs.KINDS:
        assert f'href="../reference/components/#{kind}"' in page(site, "plugins"), kind


@pytest.mark.parametrize(
    ("address", "module", "extra"),
    [("python-api", finqa, {"__version__"}), ("contracts", contracts, set()), ("types", types, set())],
    ids=["finqa", "contracts", "types"],
)
def test_public_names_and_their_methods_are_documented(
    address: str, module: ModuleType, extra: set[str], site: Path
) -> None:
    markup = page(site, f"reference/{address}")
    anchors = set(re.findall(r'<h\d id="([^"]+)" class="doc', markup))
    for name in set(module.__all__) - extra:
        path, value = f"{module.__name__}.{name}", getattr(module, name)
        assert path in anchors, name
        methods = vars(value) if inspect.isclass(value) else {}
        public = {each for each, function in methods.items() if inspect.isfunction(function) and each[0] != "_"}
        own = {each for each in public if methods[each].__module__ == value.__module__}
        assert not {each for each in own if f"{path}.{each}" not in anchors}, name
    assert not [anchor for anchor in anchors if re.search(r"\._", anchor)]
    assert re.search(r'<p class="source" data-search-exclude>finqa\w*/\w+', markup)


def test_hooks_are_documented_by_the_number_of_their_answers(site: Path) -> None:
    markup = page(site, "reference/hooks")
    assert all(f'id="finqa_cli.extend.{name}"' in markup for name in ("Component", "VenvSpec"))
    assert {"Component", "VenvSpec", "hookimpl"} <= set(extend.__all__)
    several, _, first = markup.partition('id="answers"')
    for name, function in inspect.getmembers(hookspecs, inspect.isfunction):
        if (options := getattr(function, "finqa_spec", None)) is not None:
            assert f'id="finqa_cli.extend.hookspecs.{name}"' in (first if options["firstresult"] else several), name


def test_the_header_has_the_version(site: Path) -> None:
    assert re.search(rf'md-ellipsis">\s*finqa {re.escape(__version__)}\s*<', page(site, "."))


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    return importlib.import_module("generated_reference")  # of docs/_site, as pytest's `pythonpath` has it


def _command(function: Any) -> Any:
    application = typer.Typer(add_completion=False)
    application.command()(function)
    return typer.main.get_command(application)


def test_a_command_or_an_option_without_help_fails_the_build(hook: ModuleType) -> None:
    def silent() -> None: ...

    def option(size: Annotated[int, typer.Option("--size")] = 1) -> None:
        """Do something."""

    def good(size: Annotated[int, typer.Option("--size", min=1, max=9, help="Size of <a|b>_c.")] = 1) -> None:
        """Do something with --size 3.

        Example: finqa tried --size 2
        """

    with pytest.raises(hook.PluginError, match=r"^finqa tried has no help: write a docstring of its function"):
        hook.command_page("tried", _command(silent))
    with pytest.raises(hook.PluginError, match=r"^finqa tried --size has no help: give help= where it is declared\.$"):
        hook.command_page("tried", _command(option))
    written = hook.command_page("tried", _command(good))
    assert "Do something with `--size 3`." in written and "```text\nfinqa tried --size 2\n```" in written
    assert "| `--size` | Size of &#60;a&#124;b&#62;&#95;c.<br>integer, default `1`, from 1 to 9 |" in written


class _Options(BaseModel):
    """Options of a test."""

    size: int = Field(default=1, ge=1, le=9)


def test_a_component_or_an_option_without_text_fails_the_build(hook: ModuleType) -> None:
    component = Component(kind="reward", name="tried", target="a:B", config=f"{__name__}:_Options", summary="A test")
    with pytest.raises(hook.PluginError, match=r"^reward tried has no text: give summary= of its Component\.$"):
        hook.components_page([replace(component, summary="")])
    with pytest.raises(hook.PluginError, match=r"option size of \S+:_Options has no description\.$"):
        hook.components_page([component])
