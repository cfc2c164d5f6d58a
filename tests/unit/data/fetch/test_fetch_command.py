from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from fetch_cases import COMMIT, FINQA, SNORKEL, tar_gz
from fixtures.hub_server import Fault, HubServer

from finqa_cli.app import main
from finqa_cli.commands.datasets.data import fetch_data
from finqa_cli.data.fetch import SOURCES


def run(*arguments: object) -> int:
    return main(["data", "fetch", *map(str, arguments)])


def test_every_source_is_an_argument() -> None:
    hint = get_type_hints(fetch_data, include_extras=False)["name"]
    assert set(get_args(hint)) == set(SOURCES)


def test_the_text_says_what_came_and_what_is_next(
    hub: HubServer, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("snorkel", "--endpoint", hub.url) == 0
    out, err = capsys.readouterr()
    assert "Fetched 4 of 4 files, 0.3 MB: snorkelai/finqa-data at aaaaaaaaaaaa" in out
    assert "For evaluation only: all of it" in out and "Do not train on it." in out
    assert out.splitlines()[-1] == "Next: finqa data import snorkel data/snorkel --out snorkel"
    assert "download (kB): 301/301" in err
    assert run("snorkel", "--endpoint", hub.url) == 0
    assert capsys.readouterr().out.startswith("Nothing to do: 4 files, 0.3 MB, every checksum is right")
    (empty_folder / "data/snorkel/benchmark_questions/finqa.csv").write_text("spoilt")
    assert run("snorkel", "--endpoint", hub.url) == 0
    assert "Damaged or missing, now right: benchmark_questions/finqa.csv" in capsys.readouterr().out


def test_json_has_the_record_and_nothing_else_is_printed(
    hub: HubServer, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = empty_folder / "my data"
    assert run("finqa", "--endpoint", hub.url, "--out", folder, "--json") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == "" and document["path"] == str(folder) and len(document["downloaded"]) == 4
    record = json.loads((folder / "fetch.json").read_text())
    assert {key: document[key] for key in record} == record
    words = shlex.split(document["next"][0])
    assert words[4:6] == [str(folder / "train.json"), str(folder / "dev.json")]
    assert all(Path(word).is_file() for word in words[4:6])


def test_resumed_and_unpacked_files_are_named(
    hub: HubServer, empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tar_gz({"data/train_finqa.csv": os.urandom(100_000)})
    hub.add("rLLM/finqa", {"data.tar.gz": archive}, commit=COMMIT)
    hub.faults += [Fault(where="/storage/", cut_after=60_000), Fault(where="/storage/", status=403)]
    assert run("rllm", "--endpoint", hub.url, "--out", "r") == 77
    captured = capsys.readouterr()
    assert "fix: hf auth login" in captured.err and "attempt 2 of 5" in captured.err and captured.out == ""
    assert run("rllm", "--endpoint", hub.url, "--out", "r", "--quiet") == 0
    captured = capsys.readouterr()
    assert "Resumed: data.tar.gz" in captured.out and "Unpacked 1 file from data.tar.gz" in captured.out
    assert captured.err == "" and hub.gets("/storage/")[-1].headers["Range"] == "bytes=60000-"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nothing"], 2, "nothing"),
        (["snorkel", "--endpoint", "hub"], 78, "plain http"),
        (["snorkel", "--revision", "nope", "--endpoint", "URL"], 65, "no revision 'nope'"),
        (["finqa", "--revision", "nope", "--endpoint", "URL"], 65, "this revision does not exist."),
        (["mbpp", "--endpoint", "URL"], 77, "refused access"),
        (["snorkel", "--out", "/proc/none", "--endpoint", "URL"], 74, "/proc/none"),
    ],
)
def test_mistakes_are_explained(
    hub: HubServer, empty_folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    assert run(*[hub.url if word == "URL" else word for word in arguments]) == code
    captured = capsys.readouterr()
    assert said in captured.err and "fix: " in captured.err and captured.out == ""
    assert list(empty_folder.rglob("fetch.json")) == []


def test_the_variables_of_the_hub_hold(hub: HubServer, empty_folder: Path) -> None:
    variables = {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_TOKEN": "hf_secret9",
    }
    words = [sys.executable, "-m", "finqa_cli", "data", "fetch", "snorkel", "--out", "s", "--json"]
    environment = {**os.environ, **variables, "HF_HOME": str(empty_folder / "hf")}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["endpoint"] == hub.url and "hf_secret9" not in done.stdout + done.stderr
    assert (empty_folder / "s/benchmark_questions/finqa.csv").read_bytes() == SNORKEL["benchmark_questions/finqa.csv"]
    assert "Bearer hf_secret9" in hub.gets("/api/datasets/")[0].headers.values()


def test_offline_mode_is_named(
    hub: HubServer, empty_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert run("snorkel", "--endpoint", hub.url) == 69
    err = capsys.readouterr().err
    assert "HF_HUB_OFFLINE" in err and "fix: unset HF_HUB_OFFLINE" in err and hub.log == []
    assert run("finqa", "--endpoint", hub.url) == 0  # GitHub is not the hub


def test_only_the_hub_needs_its_client(
    hub: HubServer, empty_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert run("snorkel", "--endpoint", hub.url) == 78
    assert "fix: pip install 'finqa[data]'" in capsys.readouterr().err
    assert run("finqa", "--endpoint", hub.url) == 0
    assert (empty_folder / "data/finqa/dev.json").read_bytes() == FINQA["dataset/dev.json"]
