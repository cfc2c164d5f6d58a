"""Files of JSON lines: no row of a user's file is lost, and only the record that a killed writer began is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from finqa_cli.app import main
from finqa_cli.errors import DataError
from finqa_cli.runs.jsonl import JsonlWriter, read_backwards, read_jsonl

RECORDS = st.lists(st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.booleans())), max_size=5)


def written(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@given(records=RECORDS, ending=st.sampled_from([b"", b"\n", b"\r\n", b"\n\n", b"\n \n"]))
def test_every_row_counts_however_the_file_ends(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], ending: bytes
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_bytes(written(records).removesuffix(b"\n") + ending)
    assert list(read_jsonl(path)) == records
    assert list(read_backwards(path)) == records[::-1]


@given(records=RECORDS, data=st.data())
def test_a_cut_file_of_a_run_has_its_whole_records_and_goes_on_after_them(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    path, whole = folder / "trajectories.jsonl", written(records)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    lines = whole[:cut].split(b"\n")
    torn = lines[-1] != b"" and whole[cut : cut + 1] != b"\n"
    kept = records[: len(lines) if lines[-1] and not torn else len(lines) - 1]
    if torn:
        with pytest.raises(DataError, match=f"line {len(lines)}"):
            list(read_jsonl(path))
    (folder / "run.json").touch()
    with capture_logs() as logs:
        assert list(read_jsonl(path)) == kept
    assert [log["line"] for log in logs] == [len(lines)] * torn
    assert list(read_backwards(path)) == kept[::-1]
    writer = JsonlWriter(path)
    writer.append({"next": True})
    writer.close()
    assert list(read_jsonl(path)) == [*kept, {"schema_version": 1, "next": True}]


def test_commands_that_read_a_users_file_count_its_last_row(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truths = [
        {
            "id": name,
            "pre_text": [],
            "post_text": [],
            "table": [["", "2023"], ["revenue", "500"]],
            "qa": {"question": "Revenue?", "program": "add(500, 0)", "exe_ans": 500.0},
        }
        for name in ("first", "last")
    ]
    tokens = ["add(", "500", "0", ")", "EOF"]
    Path("truth.json").write_text(json.dumps(truths))
    Path("answers.jsonl").write_text(
        "\n".join(json.dumps({"id": truth["id"], "predicted": tokens}) for truth in truths)
    )
    scored = document(["score", "answers.jsonl", "--metric", "finqa", "--truth", "truth.json", "--json"], capsys)
    assert (scored["rows"], scored["missing"], scored["unknown"]) == (2, 0, 0)
    assert main(["eval", "scripted", "--split=train", "--limit=4", "--run-dir=run", "--quiet"]) == 0
    lines = Path("run/trajectories.jsonl").read_text().splitlines()
    Path("chosen.jsonl").write_text("\n".join(lines[1:]))
    capsys.readouterr()
    short = ["--epochs=1", "--validation-samples=0", "--run-dir=sft", "--json"]
    assert document(["sft", "chosen.jsonl", *short], capsys)["demonstrations"] == 2, "one of three is held out"
    Path("chosen.jsonl").write_text("\n".join(lines)[:-9])
    assert main(["export", "chosen.jsonl", "--to", "trl-sft", "--out", "rows.jsonl"]) != 0
    assert "line 4" in capsys.readouterr().err
