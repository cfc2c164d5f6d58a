from __future__ import annotations

import ast
import re

from source_tree import FLOORS, ROOT, sources

from finqa_cli.app import COMMANDS, PANELS
from finqa_cli.extend import KINDS, hookspecs
from finqa_cli.settings.settings_reference import generated_files


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_hook_is_documented_with_its_arguments() -> None:
    (module,) = (source for source in sources("finqa_cli") if source.name == "finqa_cli/extend/hookspecs.py")
    hooks = [node for node in module.tree.body if isinstance(node, ast.FunctionDef)]
    assert hooks and all(hasattr(hookspecs, hook.name) for hook in hooks)
    signatures = [f"`{hook.name}({', '.join(argument.arg for argument in hook.args.args)})`" for hook in hooks]
    missing = [signature for signature in signatures if signature not in text("plugins/README.md")]
    assert not missing, f"plugins/README.md lacks {missing}"


def test_every_kind_of_component_is_documented() -> None:
    assert not [kind for kind in KINDS if f"| `{kind}` |" not in text("plugins/README.md")]


LOSSES = ("finqa_example/squares.py", "finqa_example/squares_torch.py")


def test_the_example_of_the_plugin_guide_is_the_package_that_the_tests_install() -> None:
    guide = text("plugins/README.md")
    for name in ("pyproject.toml", "finqa_example/plugin.py", "finqa_example/optimizer.py", *LOSSES):
        assert text(f"tests/fixtures/plugin_package/{name}").strip() in guide, name


def test_generated_files_are_those_of_the_declarations() -> None:
    files = generated_files(ROOT)
    assert not [path.name for path, content in files.items() if path.read_text("utf-8") != content], "make reference"


def test_the_page_of_floors_names_every_one() -> None:
    page = text("docs/contributing/floors.md")
    assert not [part for part in FLOORS if part != "__main__" and f"`{part}`" not in page]


def test_every_command_has_a_module() -> None:
    for module, summary in COMMANDS.values():
        assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), module
        assert summary.endswith(".") and len(summary) <= 70


def test_the_page_of_commands_has_each_command_below_the_heading_of_the_help() -> None:
    parts = text("docs/reference/commands.md").split("\n## ")[1:]
    sections = dict(part.split("\n", 1) for part in parts)
    assert list(sections) == list(PANELS)
    for panel, names in PANELS.items():
        assert not [name for name in names if not re.search(rf"^\|.*`(finqa )?{name}\b.*\|", sections[panel], re.M)]


def test_the_first_pages_are_short() -> None:
    assert len(text("README.md").encode()) <= 6_000, "what is longer goes to a page in docs/"
    assert len(text("CONTRIBUTING.md").encode()) <= 6_000, (
        "what is longer goes to docs/contributing/ or docs/decisions.md"
    )


def test_links_between_documents_lead_to_files() -> None:
    named = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md", "plugins/README.md")
    pages = [*(ROOT / name for name in named), *(ROOT / "docs").rglob("*.md")]
    dead, found = [], 0
    for page in pages:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", prose):
            if not re.match(r"[a-z]+:", target):
                found += 1
                if not (page.parent / target).exists():
                    dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert found > 300 and not dead, "\n".join(dead)


def test_every_page_is_in_the_navigation() -> None:
    navigation = text("mkdocs.yml")
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 60
    assert not [
        page for page in pages if not re.search(rf"^ +- (?:[\w ]+: )?{re.escape(page)}$", navigation, re.MULTILINE)
    ]
