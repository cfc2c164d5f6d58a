"""Damaged files and replies: every reader of foreign input reads them or refuses them, soon and in bounded memory.

Each input is a valid one with random damage. What a reader may raise is what its callers turn into an error of the
input, with an exit code of the list; anything else would be shown as a bug in finqa.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
import sqlite3
import tarfile
import time
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finqa_cli.contracts import CallError
from finqa_cli.data.data_problems import ProblemError
from finqa_cli.data.fetch.unpack import unpack
from finqa_cli.data.own_tables.import_options import read_mapping
from finqa_cli.data.own_tables.table_sources import find_tables
from finqa_cli.data.question_files.read_files import parquet_rows, read_json
from finqa_cli.errors import FinqaError
from finqa_cli.settings.settings_files import read_document
from finqa_plugins.codecs.json_formats import load_json, load_leading_json
from finqa_plugins.engines._http.json_documents import BadReplyError, parse_document, parse_events
from finqa_plugins.environments._task_files.task_rows import RowError, _parquet_rows

REFUSED = (FinqaError, ProblemError, RowError, BadReplyError, CallError)
SECONDS, MEGABYTES = 5.0, 200

ROWS = [{"year": 2019 + n, "revenue": f"$ {n},234.5", "note": None, "share": 0.5} for n in range(3)]


def csv_bytes() -> bytes:
    return b'item,2019,2020\nRevenue,"$ 1,234",(5.6)\nCosts,12 %,\n'


def html_bytes() -> bytes:
    return b"<table><tr><th>item<th colspan=2>2019</tr><tr><td>Revenue<td>$<td>1,234</tr></table>"


def parquet_bytes() -> bytes:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(ROWS), file := io.BytesIO())
    return file.getvalue()


def xlsx_bytes() -> bytes:
    book = pytest.importorskip("openpyxl").Workbook()
    for row in ROWS:
        book.active.append(list(row.values()))
    book.save(file := io.BytesIO())
    return bytes(file.getvalue())


def sqlite_bytes() -> bytes:
    with closing(sqlite3.connect(":memory:")) as base:
        base.execute("CREATE TABLE sales (year INTEGER, revenue TEXT)")
        base.execute("INSERT INTO sales VALUES (2019, '$ 1,234')")
        base.commit()
        return base.serialize()


def tar_bytes() -> bytes:
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w:gz") as archive:
        for name in ("a.json", "folder/b.csv"):
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"{}\n"))
    return file.getvalue()


def zip_bytes() -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", "{}" * 50)
        archive.writestr("folder/b.csv", "a,b\n1,2\n")
    return file.getvalue()


def reply_bytes() -> bytes:
    call = {"id": "1", "type": "function", "function": {"name": "query", "arguments": '{"sql": "SELECT 1"}'}}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "x", "tool_calls": [call]},
        "finish_reason": "stop",
    }
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}).encode()


@dataclass(frozen=True, slots=True)
class Reader:
    """One reader of foreign input.

    Attributes:
        name: Ending of the file.
        sample: Makes a valid input.
        read: Reads a file.
        share: Inputs of 1,000 in the long test: slow readers get few.
    """

    name: str
    sample: Callable[[], bytes]
    read: Callable[[Path], object]
    share: int


def lines_bytes() -> bytes:
    return "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def of_text(read: Callable[[str], object]) -> Callable[[Path], object]:
    return lambda path: read(path.read_bytes().decode(errors="replace"))


READERS = [
    Reader("reply.json", reply_bytes, lambda path: parse_document(path.read_bytes()), 200),
    Reader(
        "reply.events", lambda: b"data: " + reply_bytes() + b"\n\n", lambda path: parse_events(path.read_bytes()), 150
    ),
    Reader("call", lambda: b'{"name": "query", "arguments": {"sql": "SELECT 1"}}', of_text(load_json), 150),
    Reader("calls", lambda: b'{"name": "query", "arguments": {}} and more', of_text(load_leading_json), 100),
    Reader("settings.toml", lambda: b'[train]\niterations = 3\n[model]\nname = "x"\n', read_document, 50),
    Reader("settings.yaml", lambda: b"train:\n  iterations: 3\nmodel: &m {name: x}\nother: *m\n", read_document, 50),
    Reader("settings.json", lambda: b'{"train": {"iterations": 3}}', read_document, 50),
    Reader("columns.yaml", lambda: b"tables:\n  a: {header_rows: 2}\n", read_mapping, 50),
    Reader("questions.json", lambda: json.dumps(ROWS).encode(), read_json, 50),
    Reader("questions.parquet", parquet_bytes, lambda path: list(parquet_rows(path)), 15),
    Reader("tasks.parquet", parquet_bytes, lambda path: list(_parquet_rows(path)), 15),
    Reader("table.csv", csv_bytes, find_tables, 30),
    Reader("table.json", lambda: json.dumps(ROWS).encode(), find_tables, 20),
    Reader("table.jsonl", lines_bytes, find_tables, 20),
    Reader("table.html", html_bytes, find_tables, 15),
    Reader("table.parquet", parquet_bytes, find_tables, 10),
    Reader("table.xlsx", xlsx_bytes, find_tables, 5),
    Reader("tables.sqlite", sqlite_bytes, find_tables, 10),
    Reader("archive.tar.gz", tar_bytes, lambda path: unpack(path, taken=()), 5),
    Reader("archive.zip", zip_bytes, lambda path: unpack(path, taken=()), 5),
]

PIECES = (
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"[" * 300, b"{" * 300, b'{"a":' * 200, b"9" * 5000, b"1e999", b"NaN"),
    *(b"\\ud800", b"*m", b"&m", b"<<: *m", b"\x1b[31m", b"../../x", b"<table>" * 50, b"colspan=99999999", b'"""'),
    *(b"=1+1", b"\r", b"\n" * 50, b",", b'"', b"<!ENTITY a 'b'>", b"&#0;", b"data: [DONE]\n\n", b"x" * 10_000),
)


@cache
def sample_of(reader: Reader) -> bytes:
    return reader.sample()


def damaged(content: bytes, dice: random.Random) -> bytes:
    """The content with up to four random changes; of a compressed one, at times those of what is inside."""
    if content[:2] == b"\x1f\x8b" and dice.random() < 0.7:
        return gzip.compress(damaged(gzip.decompress(content), dice), 1)
    changed = bytearray(content)
    for _ in range(dice.randrange(1, 5)):
        place, other = (dice.randrange(len(changed) + 1) for _ in "12")
        kind = dice.randrange(6)
        if kind == 0:
            changed[place:place] = dice.choice(PIECES)
        elif kind == 1:
            del changed[place : place + dice.randrange(1, 40)]
        elif kind == 2 and place < len(changed):
            changed[place] = dice.randrange(256)
        elif kind == 3:
            changed[place:place] = changed[min(place, other) : max(place, other)][:5000]
        elif kind == 4:
            del changed[place:]
        else:
            changed[place : place + 8] = dice.randbytes(8)
    return bytes(changed)


def check(reader: Reader, folder: Path, dice: random.Random) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / reader.name
    file.write_bytes(content := damaged(sample_of(reader), dice))
    began = time.monotonic()
    try:
        reader.read(file)
    except REFUSED:
        pass
    except Exception as error:
        raise AssertionError(f"{reader.name}: {type(error).__name__}: {error}: {content[:2000]!r}") from error
    assert time.monotonic() - began < SECONDS, content


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@given(dice=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_damaged_input_is_read_or_refused(reader: Reader, folder: Path, dice: random.Random) -> None:
    check(reader, folder / reader.name, random.Random(dice.getrandbits(64)))


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_hundred_thousand_damaged_inputs_are_read_or_refused(reader: Reader, tmp_path: Path) -> None:
    assert sum(each.share for each in READERS) == 1000
    dice = random.Random(49)
    sample_of(reader)
    for _ in range(20):  # what is imported and allocated once
        check(reader, tmp_path / "fuzz", dice)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100 * reader.share):
        check(reader, tmp_path / "fuzz", dice)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024
