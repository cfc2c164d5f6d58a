"""What the variables of the server say about limits, and how hosts and peers are distinguished."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.tiny_snapshot import write_tiny_snapshot

from finqa_cli.contracts import EnvironmentContext
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.environments.openenv_finqa.server.run_server import main
from finqa_plugins.environments.openenv_finqa.server.server_app import MAX_SESSIONS
from finqa_plugins.environments.openenv_finqa.server.server_limits import (
    ServerLimits,
    host_name,
    is_loopback,
    peer_of,
)

TOKEN = "0123456789abcdef"


def test_a_server_on_loopback_needs_no_token_and_takes_loopback_names_only() -> None:
    limits = ServerLimits.from_variables({})
    assert limits == ServerLimits()
    assert limits.serves("127.0.0.1") and limits.serves("::1") and limits.serves("/run/server.sock")
    assert not limits.serves("0.0.0.0") and not limits.serves("10.0.0.7") and not limits.serves("::")
    assert all(map(limits.allows_host, ("localhost", "127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1")))
    assert not any(map(limits.allows_host, ("evil.example", "10.0.0.7", "", "localhost.evil.example")))


@pytest.mark.parametrize("variables", [{"FINQA_TOKEN": TOKEN}, {"FINQA_REQUIRE_TOKEN": "0"}])
def test_beyond_loopback_it_serves_with_a_token_or_when_told_so(variables: dict[str, str]) -> None:
    assert ServerLimits.from_variables(variables).serves("0.0.0.0")


def test_hosts() -> None:
    listed = ServerLimits.from_variables({"FINQA_ALLOWED_HOSTS": "gpu-host, Data.Example", "HOST": "10.0.0.7"})
    assert all(map(listed.allows_host, ("gpu-host", "data.example", "10.0.0.7", "localhost")))
    assert not listed.allows_host("evil.example")
    assert not ServerLimits.from_variables({"HOST": "0.0.0.0"}).allows_host("0.0.0.0")
    assert ServerLimits.from_variables({"FINQA_ALLOWED_HOSTS": "*"}).allows_host("evil.example")
    assert ServerLimits.from_variables({"FINQA_TOKEN": TOKEN}).allows_host("evil.example"), "the token decides"
    both = ServerLimits.from_variables({"FINQA_TOKEN": TOKEN, "FINQA_ALLOWED_HOSTS": "gpu-host"})
    assert both.allows_host("gpu-host") and not both.allows_host("evil.example")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FINQA_TOKEN", "short-secret", "FINQA_TOKEN must have 16 or more visible ASCII characters"),
        ("FINQA_TOKEN", "with a blank in the secret", "FINQA_TOKEN must have 16"),
        ("FINQA_TOKEN", "sécret-sécret-sécret", "FINQA_TOKEN must have 16"),
        ("FINQA_REQUIRE_TOKEN", "no", "FINQA_REQUIRE_TOKEN must be 0 or 1, got 'no'"),
        ("FINQA_ALLOWED_HOSTS", "http://x", "FINQA_ALLOWED_HOSTS must be host names without ports, or *"),
        ("FINQA_ALLOWED_HOSTS", "x:80", "FINQA_ALLOWED_HOSTS must be host names without ports"),
        ("FINQA_CONNECTIONS_PER_PEER", "0", "FINQA_CONNECTIONS_PER_PEER must be positive"),
        ("FINQA_SESSIONS_PER_PEER", "1.5", "FINQA_SESSIONS_PER_PEER must be a whole number"),
        ("FINQA_HEADER_TIMEOUT", "inf", "FINQA_HEADER_TIMEOUT must be positive"),
        ("FINQA_BODY_TIMEOUT", "x", "FINQA_BODY_TIMEOUT must be a number"),
        ("FINQA_OPENING_TIMEOUT", "-1", "FINQA_OPENING_TIMEOUT must be positive"),
    ],
)
def test_a_wrong_variable_is_named_and_a_token_never_shown(name: str, value: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ServerLimits.from_variables({name: value})
    assert str(caught.value).startswith(message)
    assert "secret" not in str(caught.value) and "sécret" not in str(caught.value)


def test_the_token_is_in_no_representation() -> None:
    assert TOKEN not in repr(ServerLimits(token=TOKEN))


def test_beyond_loopback_the_process_does_not_start_without_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main({"HOST": "0.0.0.0", "FINQA_SNAPSHOT": str(write_tiny_snapshot(tmp_path).path)}) == 78
    said = capsys.readouterr().err
    assert said.startswith("bad environment variable: HOST '0.0.0.0' can be reached from other machines")
    assert "FINQA_TOKEN" in said and "FINQA_REQUIRE_TOKEN=0" in said and said.count("\n") == 1


def test_the_server_of_a_sandbox_has_place_for_all_sessions_of_its_one_client(tmp_path: Path) -> None:
    spec = FinQAEnvironment(None, EnvironmentContext(snapshot=write_tiny_snapshot(tmp_path))).sandbox_spec()
    assert spec is not None
    limits = ServerLimits.from_variables(spec.environment)
    assert min(limits.sessions_per_peer, limits.connections_per_peer) > MAX_SESSIONS


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("localhost:8000", "localhost"),
        ("LocalHost", "localhost"),
        ("localhost.:80", "localhost"),
        ("[::1]:8000", "::1"),
        ("[::1]", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("localhost:80@evil.example", ""),
        ("localhost:evil", ""),
        ("user@localhost", "user@localhost"),
        ("", ""),
    ],
)
def test_the_host_of_an_authority(authority: str, host: str) -> None:
    assert host_name(authority) == host


def test_a_peer_is_an_address_or_a_network() -> None:
    assert peer_of(("10.0.0.7", 1)) == peer_of(("10.0.0.7", 2)) != peer_of(("10.0.0.8", 1))
    assert peer_of(("2001:db8::1", 1)) == peer_of(("2001:db8::ffff:2", 1)) != peer_of(("2001:db8:0:1::1", 1))
    assert peer_of(("fe80::1%eth0", 1)) == "fe80::/64"
    assert peer_of(("::ffff:10.0.0.7", 1)) != peer_of(("::ffff:10.0.0.8", 1))
    assert peer_of(None) == "" and peer_of(("testclient", 1)) == "testclient"
    assert not is_loopback("testclient")
