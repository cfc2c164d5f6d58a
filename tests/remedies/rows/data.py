"""Data files and snapshots."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fixtures import finqa_text_rows
from fixtures.data_files import finqa_row, write_folder, write_json
from remedies.faults import Fault, new, own, text
from remedies.following import run

from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots
from finqa_cli.types import Snapshot


def page(number: int, part: int, company: str) -> dict[str, Any]:
    name = f"{company}/2010/page_{number}.pdf"
    row = finqa_text_rows.original(number, id=f"{name}-{part}", filename=name)
    return {**row, "qa": {**row["qa"], "question": f"what was {number} and {part} ?"}}


def files(shared: dict[str, Any]) -> Callable[[], None]:
    """Files of two splits that share a page, or a whole row."""

    def write() -> None:
        Path("d").mkdir(exist_ok=True)
        rows = [page(number, 1, company) for number, company in enumerate(("AA", "BB", "CC", "EE", "FF", "GG"), 1)]
        finqa_text_rows.write(Path("d/train.json"), *rows)
        finqa_text_rows.write(Path("d/dev.json"), shared, page(9, 1, "DD"))

    return write


APART = "data prepare d/train.json d/dev.json --out p"
DATA = {
    "splits that share a page": Fault(APART, files(page(1, 2, "AA")), by_hand=new("data prepare d/train.json --out p")),
    "splits that share a row": Fault(APART, files(page(1, 1, "AA")), by_hand=new("data prepare d/train.json --out p")),
    "no good row": Fault("data prepare x/train.json --out p --skip-bad", text("x/train.json", "[{}]")),
    "nothing to check": Fault("data check nothing", by_hand=lambda: write_folder(Path("nothing"))),
    "a file without a split": Fault(
        "data prepare rows.json --out p --split-by file", lambda: write_json(Path("rows.json"), [finqa_row("a")])
    ),
    "bad rows": Fault(
        "data prepare train.json --out p",
        lambda: write_json(Path("train.json"), [finqa_row("a"), {}]),
        by_hand=lambda: write_json(Path("train.json"), [finqa_row("a")]) and None,
    ),
    "no snapshot": Fault("snapshot show own", own, {"DIR": "own"}, home=True),
    "no snapshot to play": Fault(
        "eval scripted --snapshot own --limit 1 --split train", own, {"DIR": "own"}, home=True
    ),
    "a mistyped snapshot": Fault(
        "snapshot show owm",
        lambda: (own(), run("snapshot build --snapshot-name own --data own")),
        {"DIR": "own"},
        home=True,
    ),
    "no name of a snapshot": Fault("snapshot build --snapshot-name ../up", home=True),
    "no data for a name": Fault("snapshot build --snapshot-name mine", own, {"DIR": "own"}, home=True),
    "other data under the embedded name": Fault(
        "snapshot build", lambda: (own(), run("snapshot build --data own")), {"DIR": "own"}, home=True
    ),
    "a damaged snapshot": Fault("play --engine scripted --quiet", lambda: damage(DEFAULT_NAME), home=True),
    "a damaged snapshot of one's own": Fault(
        "snapshot show own", lambda: (own(), damage("own", "own")), {"DIR": "own"}, home=True
    ),
    "nothing to delete": Fault("snapshot delete nosuch", home=True),
}


def damage(name: str, data: str = "embedded") -> None:
    assert run(f"snapshot build --snapshot-name {name} --data {data}") == 0
    with (store().get(name).path / "tasks.jsonl").open("a") as file:
        file.write("{}\n")


def store() -> LocalSnapshots:
    return LocalSnapshots(Path(os.environ["FINQA_HOME"]))


def embedded_snapshot() -> Snapshot:
    """Build the snapshot of the embedded data in the current home."""
    assert run("snapshot build") == 0
    return store().get(DEFAULT_NAME)
