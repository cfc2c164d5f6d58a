"""Reports in a real browser: hostile texts stay texts, nothing is loaded, and every view works."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fixtures.chromium import Tab, browser, needs_chromium
from fixtures.report_runs import PAYLOADS, attempt, evaluated, hostile, on_nodes, training, write_run

from finqa_cli.publishing.report.run_report import write_report

pytestmark = [needs_chromium, pytest.mark.thorough]

AXE = os.environ.get("FINQA_AXE", "")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def well_formed(text: str) -> str:
    """The text as an address has it: without lone surrogates."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def views(run: Path, *, compared: bool = False) -> list[str]:
    """Addresses of every kind of page of a report."""
    records = [json.loads(line) for line in (run / "trajectories.jsonl").read_text("utf-8").splitlines()]
    first = quote(records[0]["id"], safe="")
    group = quote(records[0]["id"].rpartition("/")[0], safe="")
    found = ["#/overview", "#/episodes", "#/settings", f"#/episode?id={first}", f"#/group?id={group}"]
    return [*found, "#/compare"] if compared else found


def test_payloads_run_nowhere_and_nothing_is_loaded(tab: Tab, tmp_path: Path) -> None:
    run = hostile(tmp_path / "<img src=x onerror=window.hit=1>")
    page = write_report([run]).path
    tab.console.clear()
    tab.requests.clear()
    tab.open(page)
    for view in ["#/overview", "#/episodes", "#/settings", f"#/{PAYLOADS[0]}", f"#/episode?id={quote(PAYLOADS[4])}"]:
        tab.go(view)
    ids = tab.run("JSON.parse(document.getElementById('report').textContent).runs[0].rows.map((row) => row[0])")
    assert len(ids) == len(PAYLOADS)
    for name in ids:
        for view in ("episode", "group"):
            parameter = quote(well_formed(name if view == "episode" else name.rpartition("/")[0]), safe="")
            tab.go(f"#/{view}?id={parameter}")
            assert "No such" not in tab.run("document.querySelector('h1').textContent")
    tab.go("#/overview")
    shown = tab.run("document.querySelector('main').textContent")
    assert all(payload in shown for payload in PAYLOADS[:-1])  # in names of the policy, the data and the versions
    for payload in PAYLOADS[:-1]:
        tab.go(f"#/episode?id={quote(f'eval/0000/{payload}/0', safe='')}")
        assert payload in tab.run("document.querySelector('main').textContent")
    assert tab.run(
        "window.hit === undefined && document.querySelectorAll('main script, main img, iframe').length === 0"
    )
    assert tab.console == [] and {address.partition("#")[0] for address in tab.requests} <= {
        page.as_uri(),
        "about:blank",
    }


@pytest.mark.parametrize("width", [400, 900, 1200])
def test_no_view_scrolls_sideways(tab: Tab, tmp_path: Path, width: int) -> None:
    long = attempt("a_1", text="x" * 400, cell="y" * 300)
    shown = evaluated(tmp_path / "shown", texts=["x" * 400, "y" * 300, "z z " * 100], questions=3)
    for run in (on_nodes(training(tmp_path / "training")), write_run(tmp_path / "long", [("eval", 0, long)]), shown):
        page = write_report([run]).path
        for view in views(run):
            tab.open(page, view, width=width)
            found = tab.run("[document.documentElement.scrollWidth, innerWidth]")
            assert found[0] <= found[1] == width, view


def test_nodes_of_a_cluster_have_a_section_and_one_machine_has_none(tab: Tab, tmp_path: Path) -> None:
    run = training(tmp_path / "run")
    tab.open(write_report([run]).path)
    assert tab.run("document.getElementById('nodes-0')") is None
    tab.open(write_report([on_nodes(run)]).path)
    shown = tab.run("document.getElementById('nodes-0').parentElement.innerText")
    assert "3 nodes, 1 of their processes lost" in shown and "Losses and returns: 3" in shown
    assert "left out since" in shown and "rollout worker 1 back" in shown


def test_filter_sort_keys_and_deep_links(tab: Tab, tmp_path: Path) -> None:
    page = write_report([training(tmp_path / "run")]).path
    tab.open(page, "#/episodes?result=right&sort=tokens&down=1")
    rows = "document.querySelectorAll('tbody tr').length"
    assert tab.run(rows) == 24 and tab.run("document.querySelector('[aria-sort=descending]').textContent") == "Tokens▼"
    tab.press("/")
    for letter in "q3":
        tab.press(letter)
    assert tab.run("location.hash").endswith("q=q3") and tab.run(rows) == 6
    tab.run("document.activeElement.blur()")
    tab.press("j")
    tab.run("performance.clearMarks()")
    tab.press("Enter")
    tab.drawn()
    first = tab.run("location.hash")
    assert first.startswith("#/episode?") and tab.run("document.querySelector('h1').textContent") == "What was q3_x?"
    assert tab.run("document.querySelector('.sql .sql-word').textContent") == "SELECT"
    assert tab.run("[...document.querySelectorAll('.result th')].map((each) => each.textContent)") == [
        "line_item",
        "2023",
        "2022",
    ]
    tab.run("performance.clearMarks()")
    tab.press("j")
    tab.drawn()
    assert tab.run("location.hash") != first
    tab.open(page, "#/overview?step=2")
    assert tab.run("document.querySelector('output').textContent") == "iteration 2 of 3"
    (kl,) = tab.run(
        "[...document.querySelectorAll('.chart')].map((it) => it.textContent).filter((it) => /^KL/.test(it))"
    )
    assert "about 0 while both have the same weights" in kl
    tab.press("]")
    assert tab.run("location.hash") == "#/overview?step=3" and tab.run("document.querySelectorAll('.chart').length") > 4
    tab.open(page, "#/group?id=train%2F0001%2Fq0_x")
    assert "+0.750" in tab.run("document.querySelector('main').textContent")
    tab.run("document.getElementById('skip').click()")
    assert tab.run("document.activeElement.id") == "content" and tab.run("location.hash").startswith("#/group?")
    tab.press("?")
    assert tab.run("document.querySelector('dialog').open")


def test_a_training_begins_with_the_same_questions_before_and_after(tab: Tab, tmp_path: Path) -> None:
    run, control = evaluated(tmp_path / "run"), evaluated(tmp_path / "control", steps=2, shuffled=True)
    page = write_report([run], control=control).path
    tab.console.clear()
    tab.open(page)
    texts = "[...document.querySelectorAll('{}')].map((each) => each.textContent)"
    assert tab.run("[...document.querySelector('main > div').children].map((each) => each.className)")[0] == "opening"
    head = tab.run("document.querySelector('.opening .head').textContent")
    assert "16.7 %before→ then 83.3 %after 3 iterations" in head
    assert "control: rewards shuffled16.7 %before→ then 16.7 %after 2 iterations" in head
    assert tab.run(texts.format(".large .legend > span"))[2] == "control: rewards shuffled"
    assert tab.run(texts.format(".large .legend > span"))[-1].endswith(
        "clustered by question, bars clustered by company."
    )
    assert tab.run("document.querySelectorAll('.large > svg .eval .curve').length") == 0, "two points are no curve"
    assert "2 training groups and 6 held-out questions at iteration 3" in tab.run(
        "document.getElementById('step-panel').textContent"
    )
    assert tab.run(texts.format(".before-after caption"))[0].endswith("with 95 % intervals clustered by company")
    series = "[...document.querySelectorAll('.large > svg .series')].map((each) => each.getAttribute('class'))"
    assert tab.run(series) == [f"series run-{name} {kind}" for name in ("control", "0") for kind in ("train", "eval")]
    assert tab.run("document.querySelectorAll('.large > svg .run-control .band').length") == 1
    assert tab.run(texts.format(".before-after th"))[1:] == [
        *("before", "after 3 iterations", "control, before", "control, after 2 iterations"),
    ]
    assert tab.run(texts.format(".before-after tbody tr:first-child td")) == [
        *("accuracy, greedy", "0.167 [0.000, 1.000]", "0.833 [0.000, 1.000]"),
        *("0.167 [0.000, 1.000]", "0.167 [0.000, 1.000]"),
    ]
    assert "4 of 6 questions became right and 0 became wrong; 1 stayed right and 1 stayed wrong" in tab.run(
        "document.querySelector('main').textContent"
    )
    assert tab.run(texts.format(".example h3")) == [f"What was q{at}_x?" for at in (1, 2, 3)]
    assert tab.run(texts.format(".example .answered")) == ["Answer: 40 ✗ wrong", "Answer: 43 ✓ right"] * 3
    assert tab.run(texts.format(".example mark")) == ["'40'", "'43'"] * 3
    assert tab.run(texts.format(".example .sql .sql-word"))[:3] == ["SELECT", "FROM", "WHERE"]
    assert tab.run(texts.format(".example .returned"))[1] == "returns line_item 43, 2023 499, 2022 null"
    links = tab.run("[...document.querySelectorAll('.example a')].map((each) => each.getAttribute('href'))")
    assert len(links) == 6
    for link, step in zip(links, [0, 3] * 3, strict=True):
        tab.go(link)
        assert f"eval/{step:04d}/" in tab.run("document.querySelector('main').textContent")
        assert tab.run("document.querySelectorAll('.turn').length") == 2
    assert tab.console == []


def test_the_score_of_an_evaluation_has_one_interval(tab: Tab, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [("eval", 0, attempt(f"q{at}_x", reward=float(at > 1))) for at in range(4)])
    tab.open(write_report([run]).path)
    names = tab.run("[...document.querySelectorAll('main td:first-child')].map((each) => each.textContent)")
    assert any(name.startswith("Reward") for name in names)
    assert not any(name.startswith("Accuracy") for name in names)
    assert "clustered by" in tab.run("document.querySelector('.head .score').textContent")


def test_payloads_in_questions_before_and_after_run_nowhere(tab: Tab, tmp_path: Path) -> None:
    tab.console.clear()
    for start in range(0, len(PAYLOADS), 3):
        texts = PAYLOADS[start : start + 3]
        run = evaluated(tmp_path / f"run{start}", questions=3, texts=texts)
        control = evaluated(
            tmp_path / f"</script><img src=x onerror=window.hit={start}>", questions=3, texts=texts, shuffled=True
        )
        tab.open(write_report([run], control=control).path)
        shown = tab.run("document.querySelector('#same-questions').parentElement.textContent")
        assert all(f"What was {text}?" in shown for text in texts if text != PAYLOADS[-1])  # a half of a pair
        assert tab.run("document.querySelectorAll('.example').length") == 3
        assert tab.run("window.hit === undefined && !document.querySelector('main :is(script, img, iframe, style)')")
    assert tab.console == []


def test_two_runs_are_compared_question_by_question(tab: Tab, tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, [("eval", 0, attempt(f"q{at}_x", reward=float(at >= from_))) for at in range(6)])
        for name, from_ in (("one", 4), ("two", 1))
    ]
    page = write_report(runs).path
    tab.open(page, "#/compare")
    shown = tab.run("[...document.querySelectorAll('tbody tr')].map((row) => row.lastChild.textContent)")
    assert shown == ["+1.00"] * 3 + ["±0.00"] * 3
    tab.go("#/overview")
    assert "B is better on 3 and worse on 0" in tab.run("document.querySelector('main').textContent")


def test_colours_follow_the_system_and_the_button(tab: Tab, tmp_path: Path) -> None:
    page = write_report([training(tmp_path / "run")]).path
    ground = "getComputedStyle(document.body).backgroundColor"
    tab.open(page, scheme="dark")
    dark = tab.run(ground)
    tab.open(page, scheme="light")
    light = tab.run(ground)
    assert dark != light
    tab.press("t")
    tab.press("t")
    assert tab.run(ground) == dark
    tab.press("t")
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.run("getComputedStyle(document.querySelector('.top')).display") == "none"
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.run(ground) == "rgb(255, 255, 255)"  # on paper always light
    tab.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.skipif(not AXE, reason="FINQA_AXE names no axe.min.js (npm pack axe-core)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(tab: Tab, tmp_path: Path, scheme: str) -> None:
    runs = [training(tmp_path / "one"), training(tmp_path / "two", steps=2)]
    page = write_report(runs).path
    control = evaluated(tmp_path / "control", steps=2, shuffled=True)
    shown = write_report([evaluated(tmp_path / "shown")], control=control).path
    pages = [*((page, view) for view in views(runs[0], compared=True)), (shown, "#/overview")]
    tab.call("Page.setBypassCSP", enabled=True)
    try:
        for width in (1200, 400):
            for file, view in pages:
                tab.open(file, view, width=width, scheme=scheme)
                tab.run(Path(AXE).read_text("utf-8") + "; 0")
                tab.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
                found = tab.run(
                    "axe.run().then((result) => result.violations.map((each) => [each.impact, each.id, "
                    "each.nodes.map((node) => node.html.slice(0, 200))]))"
                )
                assert not [each for each in found if each[0] in ("serious", "critical")], (view, width)
    finally:
        tab.call("Page.setBypassCSP", enabled=False)


@pytest.mark.slow
def test_two_thousand_episodes_paint_within_a_second_and_filter_within_a_tenth(tab: Tab, tmp_path: Path) -> None:
    words = random.Random(0).choices([f"w{number}" for number in range(5000)], k=2000 * 600)
    thoughts = (" ".join(words[start : start + 600]) for start in itertools.count(0, 600))
    attempts = [
        (
            "train",
            step,
            attempt(f"q{at}_x", member, step=step, reward=float(member < step), phase="train", thoughts=next(thoughts)),
        )
        for step, at, member in itertools.product(range(1, 26), range(10), range(8))
    ]
    run = write_run(tmp_path / "run", attempts, command="train")
    report = write_report([run])
    assert report.size < 30_000_000 and report.runs[0][2] == 2000
    tab.console.clear()
    tab.requests.clear()
    marks: dict[str, list[float]] = {"#/overview": [], "#/episodes": []}
    filters: dict[str, list[float]] = {"q7": [], "q7 right": [], "nothing": [], "": []}
    for _ in range(5):
        for view, drawn in marks.items():
            tab.open(report.path, view)  # until the page has its content; the first paint is before it
            drawn.append(tab.run("performance.getEntriesByName('finqa-drawn')[0].startTime"))
            assert tab.run("performance.getEntriesByName('first-contentful-paint')[0].startTime") < 1000
        for words, taken in filters.items():
            script = (
                "(() => { const field = document.getElementById('search'); const begun = performance.now();"
                f"field.value = {json.dumps(words)}; field.dispatchEvent(new Event('input'));"
                "document.body.offsetHeight; return performance.now() - begun; })()"
            )
            taken.append(tab.run(script))
    print(f"\n{report.size / 1e6:.1f} MB; content {figures(marks)}; filter {figures(filters)}")
    assert all(min(taken) < 1000 for taken in marks.values()), marks
    assert all(min(taken) < 100 for taken in filters.values()), filters
    assert tab.console == [] and {url.partition("#")[0] for url in tab.requests} == {report.path.as_uri()}


def figures(measured: dict[str, list[float]]) -> str:
    """The quickest and the slowest of each kind, in ms."""
    return ", ".join(f"{name or 'none'!r} {min(taken):.0f} to {max(taken):.0f} ms" for name, taken in measured.items())
