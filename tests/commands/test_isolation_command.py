"""Isolation as a user meets it: what the doctor says of it, and the flag that is named for its danger."""

from __future__ import annotations

import json

import pytest
from fixtures.isolation import needs_isolation

from finqa_cli.app import main
from finqa_plugins.sandboxes.local import isolation

pytestmark = pytest.mark.usefixtures("empty_folder")
FLAG = "--dangerously-run-unisolated"
EVAL = ("eval", "scripted", "--environment", "code", "--limit", "1", "--quiet", "--sandbox")


def finding(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str] | None:
    """What the doctor finds about isolation."""
    main(["doctor", "--engine", "scripted", "--json", *arguments])
    checks = json.loads(capsys.readouterr().out)["checks"]
    return next((check for check in checks if check["name"] == "isolation"), None)


def test_doctor_speaks_of_isolation_where_code_is_executed(capsys: pytest.CaptureFixture[str]) -> None:
    needs_isolation()
    local = ("--sandbox", "local")
    found = finding(capsys, "--environment", "code", *local)
    assert found is not None
    assert found["status"] in ("ok", "warn")
    assert finding(capsys, "--environment", "finqa", *local) is None
    found = finding(capsys, "--environment", "code", *local, FLAG)
    assert found is not None
    assert (found["status"], FLAG in found["remedy"]) == ("warn", True)


def test_code_is_not_executed_where_it_cannot_be_isolated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    which = isolation.shutil.which
    monkeypatch.setattr(
        isolation.shutil, "which", lambda name, path=None: None if name == "bwrap" else which(name, path=path)
    )
    isolation.find_isolation.cache_clear()
    try:
        found = finding(capsys, "--environment", "code", "--sandbox", "local")
        code = main([*EVAL, "local"])
        refused = capsys.readouterr()
        allowed = main([*EVAL, "local", FLAG, "--json"])
    finally:
        isolation.find_isolation.cache_clear()
    assert found is not None
    assert (found["status"], "bubblewrap" in found["detail"]) == ("fail", True)
    assert code == 78
    assert "bubblewrap is not installed" in refused.err
    assert FLAG in refused.err
    assert allowed == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0


def test_other_providers_do_not_take_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["eval", "embedded", "--environment", "code", "--sandbox", "daytona", "--engine", "scripted", FLAG, "--quiet"]
    )
    assert code == 78
    assert "dangerously_run_unisolated" in capsys.readouterr().err
