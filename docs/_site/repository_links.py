"""MkDocs hook: pages that lie elsewhere in the repository join the site, and links out of `docs/` are resolved.

Pages in `docs/` link to other files of the repository by relative paths, so that the links work in an editor and on a
code host. On the site a link to a page of `PAGES` leads to that page, and a link to any other file becomes its path as
text. A link to a file that does not exist is a warning, which fails a build with `--strict`.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/RESULTS.md": "results.md",
    "plugins/README.md": "plugins.md",
}
"""Files of the repository outside of `docs/` and their addresses on the site."""

HOME = "README.md"
"""Links to this file lead to the first page of the site."""

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\[\]\n]*(?:\n[^\[\]\n]+)?)\]\((?P<target>[^)\s]+)\)")
PIPE_IN_CODE = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)

log = logging.getLogger("mkdocs.hooks.repository_links")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of `docs/`."""
    for source, address in PAGES.items():
        files.append(File.generated(config, address, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Resolve the links of a page that lead out of `docs/`, outside of code blocks."""
    source = next((name for name, uri in PAGES.items() if uri == page.file.src_uri), f"docs/{page.file.src_uri}")
    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _prose(part, source, page.file.src_uri) for part in parts)


def _prose(text: str, source: str, address: str) -> str:
    """Return text outside of code blocks as it is written on the site.

    On a code host, a pipe in the code of a table needs a backslash. On the site it would be shown, so it is removed.
    """
    text = PIPE_IN_CODE.sub(lambda found: found[0].replace("\\|", "|"), text)
    return LINK.sub(lambda found: _resolve(found, source, address), text)


def _resolve(found: re.Match[str], source: str, address: str) -> str:
    """Return a link as it is written on the site.

    Args:
        found: Match of `LINK`.
        source: Path of the page in the repository.
        address: Path of the page on the site.
    """
    path, hash_sign, anchor = found["target"].partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return found[0]
    target = os.path.normpath(PurePosixPath(source).parent / path)
    if target.startswith("docs/"):
        uri = target.removeprefix("docs/")
    elif target in PAGES:
        uri = PAGES[target]
    elif target == HOME:
        uri = "index.md"
    elif (ROOT / target).exists():
        return f"`{target}`" if target.endswith(found["text"]) else f"{found['text']} (`{target}`)"
    else:
        log.warning("%s links to '%s', which is not in the repository.", source, found["target"])
        return found[0]
    relative = os.path.relpath(uri, PurePosixPath(address).parent)
    return f"{found['image']}[{found['text']}]({relative}{hash_sign}{anchor})"
