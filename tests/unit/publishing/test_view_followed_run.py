"""A viewed run is read once: what is appended, replaced, damaged or elsewhere."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures.report_runs import attempt, on_nodes, training, write_run

from finqa_cli.errors import DataError
from finqa_cli.publishing.report.report_advantages import recomputed_advantages
from finqa_cli.publishing.report.report_data import run_document
from finqa_cli.publishing.report.report_records import read_records
from finqa_cli.publishing.view.followed_run import VIEW_COLUMNS, FollowedRun, PageVersion, ViewStopped
from finqa_cli.runs.jsonl import rewind
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.types import Trajectory


class Page:
    """What a page has: a document, kept up to date as live.js does it."""

    def __init__(self, run: FollowedRun) -> None:
        self.run = run
        self.document: dict[str, Any] = {}
        self.sent = 0

    def look(self) -> dict[str, Any]:
        found = self.run.document(self.document.get("version", ""))
        self.sent = len(found["rows"])
        if not found["full"]:
            for name in ("questions", "groups", "steps"):
                found[name] = [*self.document[name], *found[name]]
            rows = {row[-1]: row for row in self.document["rows"]} | {row[-1]: row for row in found["rows"]}
            found = {**found, "settings": self.document["settings"], "rows": list(rows.values())}
        self.document = found
        return found

    def rows(self) -> dict[str, dict[str, Any]]:
        found = [dict(zip(VIEW_COLUMNS, row, strict=True)) for row in self.document["rows"]]
        return {row["id"]: {**row, "question": self.document["questions"][row["question"]]["id"]} for row in found}


def reopen(path: Path) -> RunFolder:
    settings = json.loads((path / "settings.json").read_text("utf-8"))
    return RunFolder.reopen(path, settings=settings, save_token_ids=False, iteration=1000)


def append(folder: RunFolder, one: Trajectory, phase: str = "eval", step: int = 0) -> None:
    folder.trajectory(one, phase=phase, iteration=step).result()


def test_a_page_that_looks_again_has_what_a_report_has(tmp_path: Path) -> None:
    path = tmp_path / "run"
    settings = {"optimizer": {"name": "grpo", "options": {}}}
    with RunFolder.create(path, command="train", settings=settings, save_token_ids=False) as folder:
        page = Page(FollowedRun(path))
        assert page.look()["rows"] == [] and page.document["head"]["status"] == "running"
        for step in (1, 2):
            for at, member in ((0, 0), (0, 1), (1, 0), (1, 1)):
                one = attempt(f"q{at}_x", member, reward=float(member), step=step, phase="train")
                append(folder, one, "train", step)
                page.look()
            folder.metrics({"kind": "train", "iteration": step, "kl": 0.1})
        page.look()
        folder.finish("completed")
    found = page.look()
    records = read_records(path)
    advantages, notes = recomputed_advantages(records.episodes, records.settings)
    wanted = run_document(records, records.episodes, advantages, notes)
    assert {name: found[name] for name in ("curves", "breakdown", "steps", "settings", "notes")} == {
        name: wanted[name] for name in ("curves", "breakdown", "steps", "settings", "notes")
    }
    for name in ("score", "policy", "versions", "created", "finished", "status"):
        assert found["head"][name] == wanted["head"][name]
    rows = [dict(zip(wanted["columns"], row, strict=True)) for row in wanted["rows"]]
    for row in rows:
        mine = page.rows()[row["id"]]
        assert mine["question"] == wanted["questions"][row["question"]]["id"]
        assert found["groups"][mine["group"]] == wanted["groups"][row["group"]]
        assert {name: mine[name] for name in ("reward", "advantage", "answer", "reason", "tokens", "version_low")} == {
            name: row[name] for name in ("reward", "advantage", "answer", "reason", "tokens", "version_low")
        }


def test_only_what_is_new_is_sent_and_rows_of_a_step_under_way_again(tmp_path: Path) -> None:
    path = training(tmp_path / "run", steps=2)
    page = Page(FollowedRun(path))
    page.look()
    assert page.sent == 32
    before = page.run.stamp()
    page.look()
    assert page.sent == 0 and page.run.stamp() == before
    with reopen(path) as folder:
        append(folder, attempt("q0_x", 0, reward=1.0, step=3, phase="train"), "train", 3)
        assert page.run.stamp() != before
        page.look()
        assert page.sent == 1
        append(folder, attempt("q0_x", 1, reward=0.0, step=3, phase="train"), "train", 3)
        page.look()
        assert page.sent == 2 and page.rows()["train/0003/q0_x/0"]["advantage"] == pytest.approx(0.5)
        append(folder, attempt("e_1", step=3), "eval", 3)
        page.look()
        assert page.sent == 1 and page.document["head"]["score"]["phase"] == "eval"


def test_a_resumed_run_that_takes_records_back_is_sent_anew(tmp_path: Path) -> None:
    path = training(tmp_path / "run", steps=3)
    page = Page(FollowedRun(path))
    page.look()
    for name in ("trajectories.jsonl", "metrics.jsonl"):
        assert rewind(path / name, lambda record: record["iteration"] < 3)
    found = page.look()
    assert found["full"] and len(found["rows"]) == 32 and [step["iteration"] for step in found["steps"]] == [1, 2]
    assert page.run.episode(32)["seed"]


def test_a_torn_line_counts_once_it_is_whole_and_is_forgotten_when_it_is_cut_off(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [("eval", 0, attempt("a_1"))])
    file = path / "trajectories.jsonl"
    line = file.read_bytes()
    page = Page(FollowedRun(path))
    page.look()
    second = line.replace(b"a_1", b"b_1")
    for part in (second[:40], second[40:]):
        with file.open("ab") as writer:
            writer.write(part)
        page.look()
    assert len(page.rows()) == 2
    with file.open("ab") as writer:
        writer.write(b'{"id": "to')
    page.look()
    with reopen(path) as folder:  # cuts the torn line off
        append(folder, attempt("c_1"))
    page.look()
    assert len(page.rows()) == 3 and not page.document["notes"]
    assert page.run.episode(3)["messages"][1]["text"] == "Question: c_1"


def test_damaged_lines_are_named_and_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [("eval", 0, attempt("a_1"))])
    lines = ["{", '{"id": 3}', "[1]", '"x"', "[" * 100_000, "\ud800", '{"id": NaN}']
    with (path / "trajectories.jsonl").open("ab") as file:
        file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass"))
        file.write((path / "trajectories.jsonl").read_bytes().splitlines()[0].replace(b"a_1", b"b_1") + b"\n")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": \n[2]\n{"kind": "eval", "iteration": 0}\n')
    page = Page(FollowedRun(path))
    found = page.look()
    assert found["notes"] == [
        "Skipped, because it is not the record of an attempt: trajectories.jsonl, line 2 and 6 more."
    ]
    assert sorted(page.rows()) == ["eval/0000/a_1/0", "eval/0000/b_1/0"] and len(found["steps"]) == 1
    for line in (0, 2, 4, 10**18):
        with pytest.raises(DataError, match=f"no attempt on line {line}"):
            page.run.episode(line)
    assert page.run.episode(9)["turns"]


@pytest.mark.parametrize("content", ["{", "[]", "", '{"command": 3}'])
def test_a_run_json_that_cannot_be_read_is_a_damaged_run(tmp_path: Path, content: str) -> None:
    path = write_run(tmp_path / "run", [("eval", 0, attempt("a_1"))])
    (path / "run.json").write_text(content)
    (path / "settings.json").write_text("[")
    found = FollowedRun(path).document()
    assert found["head"]["status"] == "damaged" and "run.json" in found["notes"][0]
    assert len(found["rows"]) == 1 and found["settings"] == []


@pytest.mark.parametrize("name", ["trajectories.jsonl", "metrics.jsonl", "run.json", "settings.json", "report.json"])
def test_a_file_that_is_a_link_to_elsewhere_is_not_read(tmp_path: Path, name: str) -> None:
    other = write_run(tmp_path / "secret", [("eval", 0, attempt("secret_1"))], settings={"model": {"name": "secret"}})
    (other / "report.json").write_text('{"clustered_by": "secret"}')
    path = write_run(tmp_path / "run", [("eval", 0, attempt("a_1"))])
    run = FollowedRun(path)
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(other / name)
    found = run.document()
    assert found["head"]["status"] == "damaged" and name in found["notes"][0]
    assert "secret" not in json.dumps(found)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [("eval", 0, attempt("a_1"))])
    (path / "metrics.jsonl").unlink(missing_ok=True)
    os.mkfifo(path / "metrics.jsonl")  # opening it would wait for a writer
    (path / "report.json").symlink_to("report.json")
    found = FollowedRun(path).document()
    assert "report.json, metrics.jsonl" in found["notes"][0] and len(found["rows"]) == 1


def test_a_deleted_run_is_an_empty_page(tmp_path: Path) -> None:
    found = FollowedRun(tmp_path / "gone").document()
    assert found["rows"] == [] and found["head"]["status"] in ("unknown", "damaged", "completed")


@pytest.mark.parametrize(
    "text", ["", "1", "1.2.3.4", "1.2.3.4.-5", "a.b.c.d.e", "1.2.3.4.²", "9" * 5000, "1.2.3.4.5.6"]
)
def test_a_version_that_is_none_is_that_of_an_empty_page(text: str, tmp_path: Path) -> None:
    assert PageVersion.parse(text) == PageVersion()
    assert FollowedRun(write_run(tmp_path / "run", [("eval", 0, attempt("a_1"))])).document(text)["full"]


def test_a_page_is_told_of_a_node_that_is_lost(tmp_path: Path) -> None:
    path = on_nodes(training(tmp_path / "run"))
    page = Page(FollowedRun(path))
    assert [node[0] for node in page.look()["nodes"]["nodes"]] == ["10.0.0.7", "10.0.0.8", "10.0.0.9"]
    before = page.run.stamp()

    def write(**event: Any) -> None:
        with (path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    write(event="pool", idle=3)
    assert page.run.stamp() == before, "the state of the pool is no part of the page"
    write(event="worker_lost", worker=0, node="10.0.0.7", time=20.0)
    assert page.run.stamp() != before
    assert page.look()["nodes"]["nodes"][0][3] == [[0, "lost", "fault"], [1, "", ""]] and page.sent == 0
    (path / "events.jsonl").write_text('{"event": "run_start"}\n')
    assert page.look()["nodes"] is None, "the file was replaced"


def test_reading_ends_when_the_server_does(tmp_path: Path) -> None:
    stopping = threading.Event()
    run = FollowedRun(training(tmp_path / "run"), stopping)
    stopping.set()
    with pytest.raises(ViewStopped):
        run.document()


def test_two_thousand_episodes_are_refreshed_within_a_tenth_of_a_second(tmp_path: Path) -> None:
    path = training(tmp_path / "run", steps=25, questions=10, size=8)
    page = Page(FollowedRun(path))
    page.look()
    page.look()
    taken = []
    with reopen(path) as folder:
        for member in range(8):
            append(folder, attempt("q0_x", member, step=26, phase="train"), "train", 26)
            begun = time.process_time(), page.run.stamp()
            page.look()
            taken.append(time.process_time() - begun[0])
            assert page.sent == member + 1
    assert len(page.rows()) == 2008 and min(taken) < 0.1, taken
    print(f"\n{1000 * min(taken):.0f} to {1000 * max(taken):.0f} ms of the processor")
