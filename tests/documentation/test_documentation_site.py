"""The documentation site: it builds strictly, and its search finds the pages that a reader looks for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fixtures.documentation import build_site

ROOT = Path(__file__).parents[2]

pytest.importorskip("material", reason="the site needs finqa[docs]: make docs installs it")


def found(site: Path, query: str) -> list[str]:
    """The pages with all words of a query, those with most words in a title first."""
    index: dict[str, Any] = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    words = query.lower().split()
    ranks: dict[str, int] = {}
    for section in index["docs"]:
        title, text = section["title"].lower(), re.sub(r"<[^>]+>", " ", section["text"]).lower()
        if all(word in title or word in text for word in words):
            page = section["location"].partition("#")[0]
            ranks[page] = max(ranks.get(page, 0), sum(word in title for word in words))
    return sorted(ranks, key=lambda page: -ranks[page])


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("out of memory", "guides/placement/"),
        ("resume", "guides/resume/"),
        ("own data", "own-tables/"),
        ("Daytona key", "guides/daytona/"),
    ],
)
def test_the_search_finds_the_page(query: str, page: str, site: Path) -> None:
    assert page in found(site, query)[:4]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[a](nowhere.md)", "'docs/index.md' links to 'nowhere.md'|nowhere.md"),
        ("[a](runs.md#no-such-section)", "no-such-section"),
        ("[a](../finqa_cli/no_such_module.py)", "no_such_module.py"),
        ("", 'not included in the "nav"'),
    ],
    ids=["page", "anchor", "source", "nav"],
)
def test_a_mistake_fails_the_build(text: str, reason: str, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("index", "runs", *(() if text else ("forgotten",))):
        (docs / f"{name}.md").write_text(f"# {name}\n\n{text if name == 'index' else ''}\n", encoding="utf-8")
    (docs / "_site").symlink_to(ROOT / "docs/_site")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[0]
    hook = ROOT / "docs/_site/repository_links.py"
    settings = re.sub(r"^hooks:\n(?:  - .*\n)+", f"hooks: [{hook}]\n", settings, flags=re.MULTILINE)
    pages = "".join(
        f"  - {name}.md\n" for name in ("index", "runs", "plugins", "results", "changelog", "contributing", "security")
    )
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav:\n{pages}", encoding="utf-8")
    built = build_site(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert built.returncode != 0 and re.search(reason, built.stderr), built.stderr
