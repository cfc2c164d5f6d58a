"""A call format from another author's package, from installation to an episode."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.plugin_entry_points import install

from finqa_cli.app import main
from finqa_cli.extend import registry

pytest.importorskip("transformers")

PLAY = ("eval", "embedded", "--engine=transformers", "--sandbox=local", "--limit=1", "--max-steps=1", "--quiet")


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", {"bracketed": "bracketed_plugin"})))
    registry.cache_clear()
    yield
    registry.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "finqa_example"]:
        del sys.modules[name]  # it lies in this test's folder


def test_it_is_listed_chosen_and_spoken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "bracketed", "--json"]) == 0
    (component,) = json.loads(capsys.readouterr().out)["components"]
    assert (component["kind"], component["status"], component["options"]) == ("call_format", "ready", [])

    assert main([*PLAY, "--run-dir=run", "--set=codec.options.call_format=bracketed"]) == 0
    (turn,) = json.loads(Path("run/trajectories.jsonl").read_text())["turns"]
    assert turn["text"].startswith("<tool_call>"), "the embedded policy speaks its own format"
    assert turn["parse_error"] == "Call one tool like this: [[<tool> {...}]]"

    capsys.readouterr()
    assert main([*PLAY, "--set=codec.options.call_format=brackets"]) == 78
    assert "Known: auto, hermes, llama3_json, xml, bracketed." in capsys.readouterr().err
