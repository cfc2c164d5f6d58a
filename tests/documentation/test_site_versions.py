"""The versioned site: the commands of the release guide deploy two versions, and a browser finds both."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from fixtures.chromium import Tab, browser, needs_chromium
from fixtures.documentation import QuietHandler

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/contributing/releasing.md"

pytest.importorskip("mike", reason="the site needs finqa[docs]: make docs installs it")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the site after the commands of the guide, and again for a later version, in a new git repository."""
    repository, folder = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("deployed")
    for each in ROOT.iterdir():
        if each.name not in (".git", "site"):
            (repository / each.name).symlink_to(each)
    author = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **author, "PATH": path, "GIT_CONFIG_GLOBAL": os.devnull}

    def run(command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command], cwd=repository, env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run("git init --quiet --initial-branch main && git commit --quiet --allow-empty --message first")
    commands = re.findall(r"^\$ (mike .*)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["deploy", "set-default"]
    for command in commands:
        run(command)
    run(commands[0].replace("0.1", "0.2"))
    archive = re.search(r"`(git archive gh-pages \| tar [^`]+)FOLDER`", GUIDE.read_text(encoding="utf-8"))
    assert archive
    run(f"{archive[1]}{folder}")
    return folder


def test_two_versions_an_alias_and_the_default_are_deployed(deployed: Path) -> None:
    assert json.loads((deployed / "versions.json").read_text(encoding="utf-8")) == [
        {"version": "0.2", "title": "0.2.0", "aliases": ["latest"]},
        {"version": "0.1", "title": "0.1.0", "aliases": []},
    ]
    assert '<a href="latest/">' in (deployed / "index.html").read_text(encoding="utf-8")
    for page in ("", "runs/", "reference/commands/train/"):
        assert (deployed / "0.1" / page / "index.html").is_file() and (deployed / "0.2" / page / "index.html").is_file()
        redirect = (deployed / "latest" / page / "index.html").read_text(encoding="utf-8")
        assert f'<a href="{"../" * (page.count("/") + 1)}0.2/{page}">' in redirect


def follow(tab: Tab, address: str, end: str, *, width: int) -> None:
    """Open an address and wait until its redirects lead to another one."""
    tab.resize(width)
    tab.call("Page.navigate", url=address)
    give_up = time.monotonic() + 60
    while True:
        with contextlib.suppress(AssertionError):  # a page that is left meanwhile
            if tab.run("location.href") == end:
                return
        assert time.monotonic() < give_up, tab.run("location.href")
        time.sleep(0.1)


@needs_chromium
def test_a_browser_is_led_to_the_newest_version_and_lists_all(deployed: Path, tmp_path: Path) -> None:
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(deployed))) as server,
        browser(tmp_path) as tab,
    ):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            follow(tab, f"{address}/latest/runs/", f"{address}/0.2/runs/", width=1280)
            tab.until("document.querySelectorAll('.md-version__item').length === 2")
            versions = tab.run("[...document.querySelectorAll('.md-version__link')].map((each) => each.textContent)")
            assert [" ".join(each.split()) for each in versions] == ["0.2.0latest", "0.1.0"]  # with a margin
            follow(tab, f"{address}/", f"{address}/0.2/", width=400)
            tab.until("document.querySelector('.md-version__current')")
            assert tab.run("document.documentElement.scrollWidth") <= 400
            assert not tab.console, "\n".join(tab.console)
        finally:
            server.shutdown()
            thread.join()
