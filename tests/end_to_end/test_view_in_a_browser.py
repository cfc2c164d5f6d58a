"""`finqa view` in a real browser: pages follow a run and leave the reader where they are; hostile texts stay texts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fixtures.chromium import Tab, browser, needs_chromium
from fixtures.report_runs import PAYLOADS, attempt, evaluated, hostile, training, write_run
from fixtures.view_server import ViewServer, view_server
from fixtures.warm_commands import VIEW
from fixtures.written_runs import killed_run

from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.types import Trajectory

pytestmark = [needs_chromium, pytest.mark.usefixtures("_warm_commands"), pytest.mark.thorough]

PRELOADED = VIEW

AXE = os.environ.get("FINQA_AXE", "")
SETTINGS = {"optimizer": {"name": "grpo", "options": {}}, "train": {"iterations": 9}}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    place = tmp_path / "runs"
    place.mkdir()
    return place


def begin(path: Path, command: str = "train") -> RunFolder:
    return RunFolder.create(path, command=command, settings=SETTINGS, save_token_ids=False)


def play(run: RunFolder, one: Trajectory, phase: str, step: int) -> None:
    run.trajectory(one, phase=phase, iteration=step).result()


def step(run: RunFolder, number: int, questions: int = 2) -> None:
    """One more step of a training, of four attempts at each question."""
    attempts = [
        attempt(f"q{at}_x", member, reward=float(member < number % 4), step=number, phase="train")
        for at in range(questions)
        for member in range(4)
    ]
    for written in [run.trajectory(each, phase="train", iteration=number) for each in attempts]:
        written.result()
    run.metrics({"kind": "train", "iteration": number, "kl": 0.01 * number, "reward_mean": 0.5})


def wait_for(tab: Tab, condition: str) -> None:
    """Waits until an expression of the page, or of the one that is being loaded, is true; pages look every 2 s."""
    end = time.monotonic() + 30
    while not tab.run(f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"):
        assert time.monotonic() < end, condition
        time.sleep(0.05)


def clean(tab: Tab, server: ViewServer) -> None:
    """The console is empty and nothing was asked for elsewhere."""
    assert tab.console == []
    assert {url for url in tab.requests if not url.startswith(server.root)} <= {"about:blank"}


def begin_watching(tab: Tab) -> None:
    """Leaves the page of an earlier test, whose server has ended, and forgets what it did."""
    tab.call("Page.navigate", url="about:blank")
    tab.run("0")
    tab.console.clear()
    tab.requests.clear()


TEXT = "document.querySelector('main').textContent"
ROWS = "document.querySelectorAll('main tbody tr').length"


def test_the_list_filters_sorts_and_compares_by_keyboard(tab: Tab, runs: Path) -> None:
    for name, right in (("one", 4), ("two", 1)):
        write_run(runs / name, [("eval", 0, attempt(f"q{at}_x", reward=float(at >= right))) for at in range(6)])
    training(runs / "three", steps=2)
    killed_run(runs / "four", "train", iterations=3)
    with view_server(runs) as server:
        begin_watching(tab)
        tab.visit(server.url)
        assert tab.run(ROWS) == 4 and "crashed at iteration 3 of 24" in tab.run(TEXT)
        tab.run("document.getElementById('sort-name').click()")
        names = "[...document.querySelectorAll('.row-link')].map((each) => each.textContent)"
        assert tab.run(names) == ["four", "one", "three", "two"] and tab.run("location.hash") == "#/runs?sort=name"
        tab.press("/")
        for letter in "eval":
            tab.press(letter)
        assert tab.run(names) == ["one", "two"]
        tab.run("document.activeElement.blur()")
        for key in "jxjx":
            tab.press(key)
        assert "A oneB twoCompare" in tab.run(TEXT)
        tab.run("performance.clearMarks()")
        tab.press("c")
        wait_for(tab, "location.pathname.includes('/compare/') && document.querySelectorAll('.head').length === 2")
        assert "B is better on 3 and worse on 0" in tab.run(TEXT)
        tab.go("#/compare")
        assert tab.run(ROWS) == 6
        tab.run("document.querySelector('main tbody a').click()")
        wait_for(tab, "document.querySelector('.turn') !== null")
        tab.press("r")
        wait_for(tab, "document.querySelector('h1').textContent === 'Runs'")
        clean(tab, server)


def test_new_runs_appear_and_the_search_keeps_the_focus(tab: Tab, runs: Path) -> None:
    write_run(runs / "one", [("eval", 0, attempt("a_1"))])
    with view_server(runs) as server:
        begin_watching(tab)
        tab.visit(server.url)
        tab.press("/")
        for letter in "one":
            tab.press(letter)
        with begin(runs / "one_more") as run:
            wait_for(tab, f"{ROWS} === 2")
            assert tab.run("[document.activeElement.id, document.activeElement.selectionStart]") == ["search", 3]
            step(run, 1)
            wait_for(tab, f"{TEXT}.includes('running, iteration 1 of 9')")
        clean(tab, server)


def test_a_run_is_followed_and_the_reader_stays_where_they_are(tab: Tab, runs: Path) -> None:
    with begin(runs / "live") as run, view_server(runs / "live") as server:
        begin_watching(tab)
        tab.visit(server.url)
        assert (
            "No attempt was graded" in tab.run(TEXT) and tab.run("document.getElementById('live').className") == "live"
        )
        for number in (1, 2):
            step(run, number, questions=12)
        wait_for(tab, "document.querySelectorAll('.chart').length > 4")
        assert "running, iteration 2 of 9" in tab.run(TEXT) and "96 episodes" not in tab.run(TEXT)
        tab.go("#/episodes?result=right&sort=question")
        count = tab.run(ROWS)
        assert count == 36
        tab.run("document.querySelectorAll('.row-link')[20].focus(); scrollTo(0, 900)")
        place = "[document.activeElement.textContent, Math.round(document.activeElement.getBoundingClientRect().top)]"
        before = tab.run(place)
        step(run, 5, questions=12)  # of which rows come before and after the one in focus
        wait_for(tab, f"{ROWS} > {count}")
        after = tab.run(place)
        assert after[0] == before[0] and abs(after[1] - before[1]) <= 1  # windows scroll by whole pixels
        assert tab.run("location.hash") == "#/episodes?result=right&sort=question"
        run.finish("completed")
        wait_for(tab, "document.getElementById('live').textContent === ''")
        clean(tab, server)


def test_an_open_episode_stays_open_and_its_next_one_appears(tab: Tab, runs: Path) -> None:
    with begin(runs / "live", "eval") as run, view_server(runs / "live") as server:
        long = "word " * 4000
        play(run, attempt("a_1", thoughts=long), "eval", 0)
        begin_watching(tab)
        tab.visit(f"{server.url}#/episode?id={quote('eval/0000/a_1/0', safe='')}")
        assert "next" not in tab.run("document.querySelector('.trail').textContent")
        tab.run("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")
        tab.run(
            "window.kept = document.querySelector('.turn'); kept.querySelector('pre').scrollTop = 200; scrollTo(0, 300)"
        )
        play(run, attempt("b_1"), "eval", 0)
        wait_for(tab, "document.querySelector('.trail').textContent.includes('next')")
        assert tab.run("kept.isConnected && kept.querySelector('pre').scrollTop === 200")
        assert tab.run("document.querySelector('main details').open")
        tab.run("performance.clearMarks()")
        tab.press("j")
        tab.drawn()
        assert tab.run("document.querySelector('h1').textContent") == "What was b_1?"
        clean(tab, server)


def test_both_runs_of_a_comparison_are_followed(tab: Tab, runs: Path) -> None:
    write_run(runs / "one", [("eval", 0, attempt(f"q{at}_x", reward=0.0)) for at in range(3)])
    with begin(runs / "two", "eval") as run, view_server(runs / "one", runs / "two") as server:
        play(run, attempt("q0_x"), "eval", 0)
        begin_watching(tab)
        tab.visit(f"{server.url}#/compare")
        cells = "[...document.querySelectorAll('tbody tr')].map((row) => row.lastChild.textContent)"
        shown = f"{cells}.join(' ').replaceAll('\u2013', 'none')"
        assert tab.run(shown) == "+1.00 none none"
        for at in (1, 2):
            play(run, attempt(f"q{at}_x", reward=float(at == 1)), "eval", 0)
        wait_for(tab, f"{shown} === '+1.00 +1.00 ±0.00'")
        tab.go("#/overview")
        assert "B is better on 2 and worse on 0" in tab.run(TEXT)
        clean(tab, server)


def test_a_training_and_its_control_are_shown_before_and_after(tab: Tab, runs: Path) -> None:
    evaluated(runs / "one")
    evaluated(runs / "control", steps=2, shuffled=True)
    with view_server(runs / "one", arguments=["--control", str(runs / "control")]) as server:
        begin_watching(tab)
        tab.visit(server.url)
        assert tab.run("document.title") == "one \u2013 finqa view"
        assert tab.run("document.querySelector('.opening').textContent").count("control: rewards shuffled") == 2
        assert tab.run("document.querySelectorAll('.example .calls .sql').length") == 6
        tab.run("document.querySelectorAll('.example a')[1].click()")
        wait_for(tab, "document.querySelectorAll('.turn').length === 2")
        assert "eval/0003/q1_x/0" in tab.run(TEXT)
        tab.visit(f"{server.root}run/{server.ids()['one']}")
        assert "control" not in tab.run("document.querySelector('.opening').textContent")
        clean(tab, server)


def test_an_evaluation_after_training_appears_while_it_is_watched(tab: Tab, runs: Path) -> None:
    with begin(runs / "one") as run, view_server(runs / "one") as server:
        facts = {"temperature": 0.0, "episodes": 2, "questions": 2, "clusters": 2, "turns_mean": 2.0, "measures": {}}
        facts |= {"accuracy": 0.0, "accuracy_interval": [0.0, 0.7], "quoted_years": None, "sql_error_rate": None}

        def evaluate(number: int) -> None:
            for at in range(2):
                play(run, attempt(f"q{at}_x", reward=float(number > 0), step=number, cell=str(number)), "eval", number)
            run.metrics({"kind": "eval", "iteration": number, **facts})

        evaluate(0)
        begin_watching(tab)
        tab.visit(server.url)
        assert not tab.run("document.querySelector('.opening')")
        step(run, 1)
        evaluate(1)
        wait_for(tab, "document.querySelectorAll('.example').length === 2")
        assert "2 of 2 questions became right and 0 became wrong" in tab.run(TEXT)
        clean(tab, server)


def test_new_data_waits_while_text_is_selected(tab: Tab, runs: Path) -> None:
    with begin(runs / "live") as run, view_server(runs / "live") as server:
        step(run, 1)
        tab.visit(f"{server.url}#/episodes")
        tab.run("getSelection().selectAllChildren(document.querySelector('h1'))")
        step(run, 2)
        looks = "performance.getEntriesByName('finqa-looked').length"
        seen = tab.run(looks)
        wait_for(tab, f"{looks} > {seen + 1}")
        assert tab.run(ROWS) == 8 and tab.run("getSelection().toString()") == "Episodes"
        tab.run("getSelection().removeAllRanges()")
        wait_for(tab, f"{ROWS} === 16")


def test_a_page_that_is_hidden_asks_for_nothing(tab: Tab, runs: Path) -> None:
    with begin(runs / "live") as run, view_server(runs / "live") as server:
        step(run, 1)
        tab.visit(f"{server.url}#/episodes")
        hide = "Object.defineProperty(document, 'hidden', { value: %s, configurable: true });"
        tab.run(f"{hide % 'true'} document.dispatchEvent(new Event('visibilitychange')); 0")
        tab.requests.clear()
        tab.run("new Promise((done) => setTimeout(done, 4500))")  # two looks' time, in which nothing must happen
        assert tab.requests == []
        step(run, 2)
        tab.run(f"{hide % 'false'} document.dispatchEvent(new Event('visibilitychange')); 0")
        wait_for(tab, f"{ROWS} === 16")


def test_a_server_that_ended_is_named_and_the_page_stays(tab: Tab, runs: Path) -> None:
    with begin(runs / "live") as run:
        step(run, 1)
        with view_server(runs / "live") as server:
            tab.visit(f"{server.url}#/episodes")
        wait_for(tab, "document.getElementById('live').textContent.includes('finqa view has stopped')")
        assert tab.run(ROWS) == 8


def test_payloads_run_nowhere_and_nothing_is_loaded_from_elsewhere(tab: Tab, runs: Path) -> None:
    name = "<img src=x onerror=window.hit=1>"
    hostile(runs / name)
    (runs / "<script>window.hit=1<x>").mkdir()
    with view_server(runs) as server:
        begin_watching(tab)
        tab.visit(server.url)
        assert name in tab.run(TEXT)
        tab.press("/")
        for letter in "<img":
            tab.press(letter)
        assert tab.run(ROWS) == 1
        identity = server.ids()[name]
        for page in (f"run/{identity}", f"compare/{identity}/{identity}"):
            for view in ("#/overview", "#/episodes", "#/settings", "#/compare", f"#/{quote(PAYLOADS[0])}"):
                tab.visit(f"{server.root}{page}{view}")
                assert (
                    name in tab.run("document.title + document.querySelector('body').textContent") or "episodes" in view
                )
        for payload in PAYLOADS[:-1]:
            tab.go(f"#/episode?id={quote(f'eval/0000/{payload}/0', safe='')}")
            assert payload in tab.run(TEXT)
        assert tab.run(
            "window.hit === undefined && document.querySelectorAll('main img, main script, iframe').length === 0"
        )
        clean(tab, server)


def pages(server: ViewServer) -> list[str]:
    ids = server.ids()
    episode = quote("train/0001/q0_x/0", safe="")
    return [
        *("", "#/runs?steps=1&sort=score", f"run/{ids['one']}", f"run/{ids['two']}", f"run/{ids['one']}#/episodes"),
        *(
            f"run/{ids['one']}#/episode?id={episode}",
            f"compare/{ids['one']}/{ids['two']}#/compare",
            f"run/{ids['bad']}",
        ),
    ]


def several(runs: Path) -> None:
    training(runs / "one", steps=2)
    evaluated(runs / "two", steps=2)
    killed_run(runs / ("long_" + "x" * 120), "train", iterations=3)
    (runs / "bad").mkdir()
    (runs / "bad" / "run.json").write_text("{")


@pytest.mark.parametrize("width", [400, 900, 1200])
def test_no_page_scrolls_sideways(tab: Tab, runs: Path, width: int) -> None:
    several(runs)
    with view_server(runs) as server:
        for page in pages(server):
            tab.visit(server.root + page, width=width)
            found = tab.run("[document.documentElement.scrollWidth, innerWidth]")
            assert found[0] <= found[1] == width, page


@pytest.mark.skipif(not AXE, reason="FINQA_AXE names no axe.min.js (npm pack axe-core)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_served_pages(tab: Tab, runs: Path, scheme: str) -> None:
    several(runs)
    tab.call("Page.setBypassCSP", enabled=True)
    try:
        with view_server(runs) as server:
            for width in (1200, 400):
                for page in pages(server):
                    tab.visit(server.root + page, width=width, scheme=scheme)
                    tab.run(Path(AXE).read_text("utf-8") + "; 0")
                    found: Any = tab.run(
                        "axe.run().then((result) => result.violations.map((each) => [each.impact, each.id, "
                        "each.nodes.map((node) => node.html.slice(0, 200))]))"
                    )
                    assert not [each for each in found if each[0] in ("serious", "critical")], (page, width, found)
    finally:
        tab.call("Page.setBypassCSP", enabled=False)


@pytest.mark.slow
def test_two_thousand_episodes_are_drawn_and_refreshed_quickly(tab: Tab, runs: Path) -> None:
    path = training(runs / "run", steps=25, questions=10, size=8)
    settings = json.loads((path / "settings.json").read_text())
    with (
        RunFolder.reopen(path, settings=settings, save_token_ids=False, iteration=25) as run,
        view_server(path) as server,
    ):
        for view, count in (("#/overview", 26), ("#/episodes", 27)):
            tab.visit(server.url + view)
            assert tab.run("performance.getEntriesByName('finqa-drawn')[0].startTime") < 5000
            tab.run("performance.clearMarks()")
            step(run, count)
            tab.drawn()
        assert f"{2000 + 16:,} episodes" in tab.run(TEXT)
