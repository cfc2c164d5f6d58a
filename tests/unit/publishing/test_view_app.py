"""What the server of `finqa view` answers: its own address, with its token, to GET, and runs by their ids only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fixtures.report_runs import attempt, evaluated, hostile, training, write_run

from finqa_cli.publishing.report.report_page import view_policy
from finqa_cli.publishing.view.run_catalog import MOST_FOLLOWED, RunCatalog
from finqa_cli.publishing.view.view_app import view_application
from finqa_cli.publishing.view.viewed_files import run_id

ORIGIN = "http://127.0.0.1:8123"
TOKEN = "a-token_of-32-characters-abcdefg"


class Server:
    """The application without a socket."""

    def __init__(self, *places: Path, opening: str = "", start: str = "") -> None:
        self.catalog = RunCatalog(places)
        hosts = frozenset({"127.0.0.1:8123", "localhost:8123"})
        self.app = view_application(self.catalog, token=TOKEN, hosts=hosts, opening=opening, start=start)

    def ask(self, path: str, method: str = "GET", **details: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=ORIGIN) as client:
                return await client.request(method, path, **details)

        return asyncio.run(send())

    def data(self, path: str) -> Any:
        answer = self.ask(f"/{TOKEN}/data/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    training(place / "one", steps=2)
    write_run(place / "two", [("eval", 0, attempt("a_1"))])
    (place / "data").mkdir()
    (place / "data" / "secret.txt").write_text("secret")
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Server:
    return Server(folder)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8123", "127.0.0.1", "127.0.0.1:80", "localhost", "[::1]:8123", ""]
)
def test_another_host_is_refused(server: Server, host: str) -> None:
    answer = server.ask(f"/{TOKEN}/data/runs", headers={"host": host})
    assert answer.status_code == 421 and "one" not in answer.text


def test_two_hosts_are_refused_and_the_name_of_loopback_is_not(server: Server) -> None:
    both = [("host", "127.0.0.1:8123"), ("host", "evil.example")]
    assert server.ask(f"/{TOKEN}/", headers=both).status_code == 421
    assert server.ask(f"/{TOKEN}/", headers={"host": "LOCALHOST:8123"}).status_code == 200


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "%00", "é", "open/", f"x/{TOKEN}"])
@pytest.mark.parametrize("path", ["", "/", "/data/runs", "/favicon.ico"])
def test_nothing_is_answered_without_the_token(server: Server, token: str, path: str) -> None:
    for method in ("GET", "HEAD"):
        answer = server.ask(f"/{token}{path}", method, headers={"cookie": f"token={TOKEN}", "authorization": TOKEN})
        assert answer.status_code == 403 and TOKEN not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_other_methods_are_refused(server: Server, method: str) -> None:
    for path in (f"/{TOKEN}/", f"/{TOKEN}/data/runs", "/"):
        answer = server.ask(path, method)
        assert answer.status_code in (403, 405)
        assert answer.status_code == 403 or answer.headers["allow"] == "GET, HEAD"


def test_head_is_get_without_a_body(server: Server) -> None:
    for path in ("", "data/runs"):
        found, head = server.ask(f"/{TOKEN}/{path}"), server.ask(f"/{TOKEN}/{path}", "HEAD")
        assert head.status_code == 200 and head.content == b""
        assert head.headers["content-type"] == found.headers["content-type"]


def test_headers_keep_pages_to_themselves(server: Server, folder: Path) -> None:
    run = run_id(folder / "one")
    for path in (
        f"/{TOKEN}/",
        f"/{TOKEN}/run/{run}",
        f"/{TOKEN}/data/runs",
        f"/{TOKEN}/nothing",
        "/wrong",
        f"/{TOKEN}",
    ):
        headers = server.ask(path).headers
        assert headers["cache-control"] == "no-store" and headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin" and "set-cookie" not in headers
        assert "access-control-allow-origin" not in headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none';") and policy.endswith("frame-ancestors 'none'")
    assert server.ask(f"/{TOKEN}/").headers["content-security-policy"] == f"{view_policy()}; frame-ancestors 'none'"


@pytest.mark.parametrize(
    "path",
    [
        "run/..%2fdata",
        "run/%2e%2e",
        "data/report/..%2f..%2fetc%2fpasswd",
        "data/report/one",
        "data/report/%00",
        "data/report/" + "0" * 16,
        "data/report/" + "a" * 5000,
        "data/episode/one/1",
        "data/stamp/%2fetc%2fpasswd",
        "run/one",
        "run/" + "f" * 16,
        "static/report.css",
        "data/secret.txt",
        "compare/one/two",
        "//etc/passwd",
    ],
)
def test_names_and_paths_are_no_ids(server: Server, path: str) -> None:
    answer = server.ask(httpx.URL(ORIGIN, raw_path=f"/{TOKEN}/{path}".encode()))  # type: ignore[arg-type]
    assert answer.status_code == 404 and "secret" not in answer.text and "root:" not in answer.text


@pytest.mark.parametrize("line", ["0", "-1", "x", "1.0", "99", "²", "9" * 400, "1/2"])
def test_a_line_that_is_none_is_not_found(server: Server, folder: Path, line: str) -> None:
    run = run_id(folder / "one")
    server.data(f"report/{run}")
    assert server.ask(f"/{TOKEN}/data/episode/{run}/{line}").status_code == 404


def test_runs_are_listed_with_what_ls_says(server: Server, folder: Path) -> None:
    found = server.data("runs")
    assert {run["name"]: run["status"] for run in found["runs"]} == {"one": "completed", "two": "completed"}
    assert found["others"] == ["data"] and {run["id"] for run in found["runs"]} == {
        run_id(folder / name) for name in ("one", "two")
    }


def test_a_run_has_its_report_and_its_episodes(server: Server, folder: Path) -> None:
    one, two = run_id(folder / "one"), run_id(folder / "two")
    report = server.data(f"report/{one}")
    assert report["stamp"] == server.data(f"stamp/{one}")["stamp"] and report["comparison"] is None
    (run,) = report["runs"]
    again = server.data(f"report/{one}?since={run['version']}")["runs"][0]
    assert len(run["rows"]) == 32 and again["rows"] == [] and not again["full"]
    assert server.data(f"episode/{one}/{run['rows'][3][-1]}")["turns"][0]["steps"][0]["name"] == "sql_query"
    both = server.data(f"report/{one}/{two}?since={run['version']},")
    assert [len(each["rows"]) for each in both["runs"]] == [0, 1] and both["comparison"]["rows"]
    assert server.ask(f"/{TOKEN}/compare/{one}/{two}").status_code == 200
    assert server.ask(f"/{TOKEN}/compare/{one}/{'0' * 16}").status_code == 404


def test_a_run_is_served_with_its_control(tmp_path: Path) -> None:
    run, control = evaluated(tmp_path / "run"), evaluated(tmp_path / "control", steps=2, shuffled=True)
    server = Server(tmp_path)
    path = f"{run_id(run)}/control/{run_id(control)}"
    alone = server.data(f"report/{run_id(run)}")["runs"][0]
    (found,) = server.data(f"report/{path}")["runs"]
    assert alone["control"] is None and {**found, "control": None} == alone
    assert found["progress"]["iterations"] == 3 and found["control"]["progress"]["iterations"] == 2
    assert found["control"]["label"] == "control" and found["control"]["curves"]
    stamp = server.data(f"stamp/{path}")["stamp"]
    (control / "metrics.jsonl").write_text("")
    assert server.data(f"stamp/{path}")["stamp"] != stamp  # the page of the run follows its control
    page = server.ask(f"/{TOKEN}/run/{path}")
    assert page.status_code == 200 and 'href="../../../"' in page.text
    assert server.ask(f"/{TOKEN}/run/{run_id(run)}/control/{'0' * 16}").status_code == 404


def test_no_text_of_a_run_is_in_a_page_and_markup_in_data_is_escaped(tmp_path: Path) -> None:
    run = hostile(tmp_path / "<img src=x onerror=window.hit=1>")
    server = Server(tmp_path)
    identity = run_id(run)
    for path in ("", f"run/{identity}", f"compare/{identity}/{identity}"):
        assert "window.hit" not in server.ask(f"/{TOKEN}/{path}").text
    for path in ("runs", f"report/{identity}", f"episode/{identity}/1"):
        answer = server.ask(f"/{TOKEN}/data/{path}")
        assert answer.headers["content-type"] == "application/json" and not set("<>&") & set(answer.text)
        assert answer.text.isascii() and "window.hit" in answer.text


def outside(tmp_path: Path) -> Path:
    return write_run(tmp_path / "elsewhere" / "secret", [("eval", 0, attempt("secret_1"))])


def linked_run(place: Path, target: Path) -> None:
    (place / "link").symlink_to(target)


def linked_step(place: Path, target: Path) -> None:
    write_run(place / "pipe", [])
    facts = {"command": "pipeline", "status": "completed", "steps": {"10_eval": {"status": "completed"}}}
    (place / "pipe" / "run.json").write_text(json.dumps(facts))
    (place / "pipe" / "10_eval").symlink_to(target)


def linked_files(place: Path, target: Path) -> None:
    run = write_run(place / "run", [])
    (run / "trajectories.jsonl").unlink(missing_ok=True)
    (run / "trajectories.jsonl").symlink_to(target / "trajectories.jsonl")


@pytest.mark.parametrize("make", [linked_run, linked_step, linked_files])
def test_links_out_of_the_folder_lead_nowhere(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    place = tmp_path / "runs"
    place.mkdir()
    target = outside(tmp_path)
    make(place, target)
    server = Server(place)
    listing = server.data("runs")
    assert run_id(target) not in {run["id"] for run in listing["runs"]}
    for identity in (run_id(target), *(run["id"] for run in listing["runs"])):
        for path in (f"data/report/{identity}", f"data/episode/{identity}/1", f"run/{identity}"):
            assert "secret_1" not in server.ask(f"/{TOKEN}/{path}").text
    assert server.ask(f"/{TOKEN}/data/report/{run_id(target)}").status_code == 404


def test_a_folder_that_is_named_may_be_a_link_itself(tmp_path: Path) -> None:
    target = outside(tmp_path)
    (tmp_path / "latest").symlink_to(target)
    server = Server(tmp_path / "latest")
    assert [run["name"] for run in server.data("runs")["runs"]] == ["latest"]
    assert len(server.data(f"report/{run_id(target)}")["runs"][0]["rows"]) == 1


def test_the_opening_address_works_once(folder: Path) -> None:
    server = Server(folder, opening="once", start="run/abc")
    assert server.ask("/open/other").status_code == 403 and server.ask("/open/").status_code == 403
    first = server.ask("/open/once")
    assert first.status_code == 303 and first.headers["location"] == f"/{TOKEN}/run/abc"
    assert server.ask("/open/once").status_code == 403


def test_new_runs_are_found_and_old_ones_forgotten(tmp_path: Path) -> None:
    server = Server(tmp_path)
    assert server.data("runs")["runs"] == []
    ids = [run_id(write_run(tmp_path / f"run{at}", [("eval", 0, attempt("a_1"))])) for at in range(MOST_FOLLOWED + 2)]
    for identity in ids:
        assert len(server.data(f"report/{identity}")["runs"][0]["rows"]) == 1
    kept = [server.catalog.follow(identity) for identity in ids[-MOST_FOLLOWED:]]
    assert kept == [server.catalog.follow(identity) for identity in ids[-MOST_FOLLOWED:]]
    assert server.catalog.follow(ids[0]) not in kept


def test_a_damaged_run_beside_others_is_listed_and_has_a_page(tmp_path: Path) -> None:
    training(tmp_path / "good", steps=1)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    server = Server(tmp_path)
    found = {run["name"]: run for run in server.data("runs")["runs"]}
    assert found["bad"]["status"] == "damaged" and "run.json" in found["bad"]["reason"] and len(found) == 2
    assert server.ask(f"/{TOKEN}/run/{found['bad']['id']}").status_code == 200
    assert server.data(f"report/{found['bad']['id']}")["runs"][0]["rows"] == []
    assert server.data(f"report/{found['bad']['id']}/{found['good']['id']}")["comparison"]["summary"] is None
