"""The documentation site in a real browser: every page at two widths, and its search."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from fixtures.chromium import Tab, browser, needs_chromium
from fixtures.documentation import QuietHandler

pytest.importorskip("material", reason="the site needs finqa[docs]: make docs installs it")

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Address of the site on loopback; the search needs a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def test_every_page_fits_and_has_no_error(tab: Tab, site: Path, address: str) -> None:
    pages = sorted(str(path.parent.relative_to(site)) for path in site.rglob("index.html"))
    assert len(pages) > 100
    tab.console.clear()
    tab.requests.clear()
    wide = []
    for page in pages:
        tab.load(f"{address}{page}/" if page != "." else address)
        for width in (1280, 400):
            tab.resize(width)
            if (found := tab.run("document.documentElement.scrollWidth")) > width:
                wide.append(f"{page} at {width}: {found} pixels")
    assert not wide, "\n".join(wide)
    assert not tab.console, "\n".join(tab.console)
    assert not [each for each in tab.requests if not each.startswith((address, "about:", "data:", "blob:"))]


@pytest.mark.parametrize(
    ("query", "fitting"),
    [
        ("out of memory", ["guides/placement/"]),
        ("resume", ["guides/resume/"]),
        ("own data", ["own-tables/"]),
        ("Daytona key", ["secrets/", "guides/daytona/"]),
    ],
)
@pytest.mark.parametrize("width", [400, 1280])
def test_the_search_lists_fitting_pages_first(
    query: str, fitting: list[str], width: int, tab: Tab, address: str
) -> None:
    tab.load(address, width=width)
    tab.run("document.querySelector('label.md-search__icon, .md-header__button[for=__search]').click()")
    tab.run("document.querySelector('.md-search__input').focus()")
    tab.call("Input.insertText", text=query)
    tab.until("document.querySelector('.md-search-result__link')")
    found = tab.run(
        "[...document.querySelectorAll('.md-search-result__item')].map((each) => each.querySelector('a').href)"
    )
    pages = [each.removeprefix(address).partition("?")[0] for each in found]
    assert pages[: len(fitting)] == fitting, pages[:5]


def test_copied_commands_have_no_prompts_and_no_output(tab: Tab, address: str) -> None:
    tab.load(f"{address}tutorials/first-run/")
    tab.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    tab.run("document.execCommand = () => { window.copied = String(getSelection()); return true; }")
    tab.run("document.querySelectorAll('.md-code__button[data-md-type=copy], .md-clipboard')[1].click()")
    tab.until("window.copied")
    assert tab.run("window.copied").strip() == "finqa play --engine scripted --seed 1"
