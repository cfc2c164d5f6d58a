"""What Daytona is asked for, and its sandboxes in our terms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from daytona import AsyncSandbox
from daytona_api_client_async import SandboxState

from finqa_cli.types import ServerSpec, Snapshot
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_listing import described, is_gone, is_ours, query_labels, server_params

SPEC = ServerSpec(
    snapshot=Snapshot(name="tiny", digest="sha256:0", path=Path("/nowhere")),
    module="a.server",
    environment={"FINQA_MAX_STEPS": "20", "HOST": "127.0.0.1", "PORT": "1"},
)
LABELS = {"finqa.run": "r", "finqa.created": "1750000000"}


def remote(**fields: object) -> AsyncSandbox:
    params = server_params("finqa-a", "image", SPEC, LABELS, DaytonaSandboxConfig())
    given = {"id": "1", "name": "finqa-a", "labels": params.labels, "state": SandboxState.STARTED, "created_at": None}
    given |= {"updated_at": None}
    return AsyncSandbox.model_construct(**{**given, **fields})


def test_a_sandbox_is_asked_for_with_everything_that_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "dtn_secret")
    params = server_params("finqa-a", "image", SPEC, LABELS, DaytonaSandboxConfig(ttl_minutes=90, auto_stop_minutes=20))
    assert (params.name, params.snapshot, params.public) == ("finqa-a", "image", False)
    assert (params.auto_delete_interval, params.auto_stop_interval, params.ttl_minutes) == (0, 20, 90)
    assert params.labels is not None and LABELS.items() <= params.labels.items()
    assert query_labels({"finqa.run": "r"}).items() <= params.labels.items()
    assert params.env_vars == {
        "PYTHONUNBUFFERED": "1",
        "FINQA_MAX_STEPS": "20",
        "HOST": "0.0.0.0",
        "PORT": "8000",
        "FINQA_REQUIRE_TOKEN": "0",
        "FINQA_ALLOWED_HOSTS": "*",
        "FINQA_SNAPSHOT": "/opt/finqa/snapshot",
    }


@pytest.mark.parametrize("state", list(SandboxState))
def test_every_state_has_a_word_of_ours(state: SandboxState) -> None:
    sandbox = remote(state=state)
    assert described(sandbox).state in ("started", "starting", "stopped", "error", "stuck")
    assert is_gone(sandbox, 1e12) == (state.value in ("destroyed", "destroying"))


def test_a_deletion_that_is_not_carried_out_is_listed_as_stuck() -> None:
    before = (datetime.now(UTC) - timedelta(seconds=90)).isoformat()
    hanging = remote(state=SandboxState.DESTROYING, updated_at=before)
    assert described(hanging).state == "stuck" and is_gone(hanging, 100) and not is_gone(hanging, 60)
    assert not is_gone(remote(state=SandboxState.DESTROYING, updated_at="now"), 60), "by its age"
    assert is_gone(remote(state=SandboxState.DESTROYED, updated_at=before), 60)


def test_labels_and_age() -> None:
    assert described(remote()).labels == LABELS
    assert described(remote()).created == 1_750_000_000.0
    unlabelled = {"finqa.run": "r"}
    assert described(remote(labels=unlabelled, created_at="2026-07-01T12:00:00.500Z")).created == pytest.approx(
        datetime(2026, 7, 1, 12, 0, 0, 500_000, tzinfo=UTC).timestamp()
    )
    assert described(remote(labels=unlabelled, created_at="long ago")).created == 0.0
    assert is_ours(remote()) and not is_ours(remote(labels={"team": "another"}))
