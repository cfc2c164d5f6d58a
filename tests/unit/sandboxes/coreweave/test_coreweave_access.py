"""Keys and addresses, the old name's variables, what `finqa doctor` says, and how errors are told."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from cwsandbox import CWSandboxAuthenticationError, CWSandboxError, SandboxFailedError, SandboxResourceExhaustedError
from pydantic import SecretStr
from unit.sandboxes.coreweave.conftest import RUN, WANDB_KEY, CoreWeaveBench, nothing_said, python

from finqa_cli.contracts import SandboxContext
from finqa_cli.errors import AuthenticationError, ConfigError, SandboxError, ServiceUnavailableError
from finqa_cli.masking import MASK
from finqa_cli.types import Check, ExecutionSpec
from finqa_plugins.sandboxes.coreweave.config import CoreWeaveSandboxConfig, mapped
from finqa_plugins.sandboxes.coreweave.coreweave_cloud import access, base_url
from finqa_plugins.sandboxes.coreweave.coreweave_errors import explained, is_passing, pause_asked_s
from finqa_plugins.sandboxes.coreweave.coreweave_provider import aviato_provider
from finqa_plugins.sandboxes.coreweave.plugin import doctor_checks, explain_error

OLD_KEY = "aviato-key-123456"


async def test_the_old_name_takes_the_old_key_first(
    bench: CoreWeaveBench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AVIATO_API_KEY", bench.loopback.api_key)
    monkeypatch.setenv("CWSANDBOX_API_KEY", "another-key-123456")
    monkeypatch.setenv("WANDB_API_KEY", WANDB_KEY)
    with nothing_said(capfd, bench.loopback.api_key, "another-key-123456", WANDB_KEY):
        provider = aviato_provider(None, SandboxContext(home=bench.loopback_home))
        sandbox = await provider.start(ExecutionSpec(), RUN)
        assert (await sandbox.execute(python("print(1)"))).stdout == b"1\n"
        await provider.close()


async def test_the_old_name_takes_the_key_of_wandb_with_entity_and_project(
    bench: CoreWeaveBench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CWSANDBOX_API_KEY")
    monkeypatch.setenv("WANDB_API_KEY", WANDB_KEY)
    with pytest.raises(AuthenticationError, match="WANDB_ENTITY_NAME") as missing:
        aviato_provider(None, SandboxContext(home=bench.loopback_home))
    assert "WANDB_ENTITY_NAME" in missing.value.remedy
    monkeypatch.setenv("WANDB_ENTITY_NAME", "a-team")
    monkeypatch.setenv("WANDB_PROJECT_NAME", "a-project")
    logging.getLogger("cwsandbox").setLevel(logging.DEBUG)
    with nothing_said(capfd, WANDB_KEY):
        provider = aviato_provider(None, SandboxContext(home=bench.loopback_home))
        assert not await provider.list(RUN)
        await provider.close()
    assert (await bench.stats())["seen"] == {"x-entity-id": "a-team", "x-project-name": "a-project"}


@pytest.mark.parametrize(
    ("options", "environment", "auth", "key"),
    [
        ({}, {"AVIATO_API_KEY": f" {OLD_KEY}\n"}, "api_key", OLD_KEY),
        ({"api_key": "of-the-options"}, {"AVIATO_API_KEY": OLD_KEY}, "api_key", "of-the-options"),
        ({}, {"CWSANDBOX_API_KEY": "new", "WANDB_API_KEY": "w"}, "api_key", None),
        ({}, {"WANDB_API_KEY": "w", "WANDB_ENTITY_NAME": "e"}, "wandb", None),
        ({"auth": "wandb", "entity": "e"}, {"AVIATO_API_KEY": OLD_KEY}, "wandb", None),
    ],
)
def test_old_variables_become_options(
    options: dict[str, str], environment: dict[str, str], auth: str, key: str | None
) -> None:
    config = mapped(CoreWeaveSandboxConfig.model_validate(options), {"NETRC": "/nowhere", **environment})
    assert (config.auth, config.api_key and config.api_key.get_secret_value()) == (auth, key)
    assert OLD_KEY not in repr(config)


def test_without_any_key_both_names_of_it_are_told() -> None:
    with pytest.raises(AuthenticationError, match="neither AVIATO_API_KEY nor CWSANDBOX_API_KEY nor a key of W&B"):
        mapped(CoreWeaveSandboxConfig(), {"NETRC": "/nowhere"})


async def test_the_key_is_in_no_text_about_the_way_in(bench: CoreWeaveBench) -> None:
    way = await access(CoreWeaveSandboxConfig(api_key=SecretStr(OLD_KEY)))
    assert OLD_KEY not in repr(way)
    assert way.blotted(f"bad key {OLD_KEY}!") == "bad key **********!"


@pytest.mark.parametrize(
    "url", ["http://example.com", "ftp://127.0.0.1", "127.0.0.1:80", "https://", "https://a/b", "http://127.0.0.1.evil"]
)
def test_keys_go_nowhere_in_the_clear(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CWSANDBOX_BASE_URL", url)
    with pytest.raises(ConfigError, match="CWSANDBOX_BASE_URL"):
        base_url()


def test_the_address_is_coreweaves_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CWSANDBOX_BASE_URL", raising=False)
    assert base_url() == "https://api.cwsandbox.com"
    monkeypatch.setenv("CWSANDBOX_BASE_URL", "https://other.example/")
    assert base_url() == "https://other.example"


async def examined(name: str = "cwsandbox", **options: object) -> list[Check]:
    """As `finqa doctor` does it: in a thread of its own."""
    settings = {"sandbox": {"name": name, "options": options}}
    return list(await asyncio.to_thread(lambda: doctor_checks(settings=settings)))


async def test_doctor_says_whether_the_key_is_there_and_accepted(
    bench: CoreWeaveBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (good,) = await examined()
    assert (good.name, good.status) == ("cwsandbox key", "ok")
    assert bench.loopback.api_key not in good.detail
    monkeypatch.setenv("CWSANDBOX_API_KEY", "wrong-key-123456")
    (refused,) = await examined()
    assert (refused.status, "refused the key" in refused.detail) == ("fail", True)
    assert "wrong-key-123456" not in str(refused)
    monkeypatch.setenv("AVIATO_API_KEY", bench.loopback.api_key)
    (old,) = await examined("aviato")
    assert old.status == "ok"
    monkeypatch.delenv("CWSANDBOX_API_KEY")
    (missing,) = await examined()
    assert (missing.status, "CWSANDBOX_API_KEY" in missing.remedy) == ("fail", True)
    (hidden,) = await examined(api_key=MASK)
    assert hidden.status == "warn"
    assert not await examined("local")
    assert not await examined(cpu="many")


async def test_doctor_says_that_the_service_is_out_of_reach(
    bench: CoreWeaveBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url, word in (("http://127.0.0.1:9", "unavailable"), ("http://example.com", "CWSANDBOX_BASE_URL")):
        monkeypatch.setenv("CWSANDBOX_BASE_URL", url)
        (check,) = await examined()
        assert (check.name, check.status) == ("cwsandbox", "fail")
        assert word in check.detail


def test_errors_are_told_by_what_mends_them() -> None:
    quota = SandboxResourceExhaustedError("full", reason="CWSANDBOX_QUOTA_EXCEEDED")
    assert not is_passing(quota)
    assert type(explained(quota, "x")) is ServiceUnavailableError
    busy = SandboxResourceExhaustedError("busy", retry_delay=timedelta(seconds=3))
    assert is_passing(busy)
    assert is_passing(CWSandboxError("Execute command failed: Internal error from Core"))
    assert not is_passing(CWSandboxError("Execute command failed: disk failure"))
    assert pause_asked_s(busy) == 3.0
    assert type(explained(busy, "x")) is SandboxError
    size = SandboxFailedError("no", reason="CWSANDBOX_RESOURCE_CEILING_EXCEEDED")
    assert "memory_mib" in explained(size, "x").remedy
    closed = SandboxFailedError("no", reason="CWSANDBOX_SERVERLESS_NOT_ALLOWED")
    assert "placement=cks" in explained(closed, "x").remedy
    image = SandboxFailedError("no", status_reason="ImagePullBackOff: nope")
    assert type(explained(image, "x")) is ConfigError
    assert "wandb login" in explained(CWSandboxAuthenticationError("No W&B credentials found."), "x").remedy
    assert explain_error(CWSandboxAuthenticationError("no")) is not None
    assert explain_error(ValueError("no")) is None
    assert len(explained(SandboxFailedError("x" * 9000), "x").message) < 600
