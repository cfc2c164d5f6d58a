"""Command lines for docker and podman, and what their replies mean."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from finqa_cli.errors import ConfigError
from finqa_cli.types import ServerSpec
from finqa_plugins.sandboxes.docker.config import DockerSandboxConfig
from finqa_plugins.sandboxes.docker.container_commands import (
    build_arguments,
    container_variables,
    ending_of,
    is_name,
    listing_command,
    new_name,
    parse_containers,
    remove_command,
    run_command,
    run_variables,
)

SPEC = ServerSpec(image="stock:1", environment={"LEVEL": "s3cret", "HOST": "::"})
LABELS = {"finqa.run": "r1", "finqa.host": "here"}
ROW: dict[str, Any] = {
    "Id": "4b69" * 16,
    "Created": "2026-11-25T00:33:19.567779371Z",
    "Name": "/finqa-0123456789ab",
    "State": {"Status": "running", "OOMKilled": False, "ExitCode": 0, "Error": ""},
    "Config": {
        "Labels": {
            "finqa.labels": '["finqa.host", "finqa.run"]',
            **LABELS,
            "finqa.provider": "a1",
            "io.buildah.version": "1.28.2",
        }
    },
    "NetworkSettings": {"Ports": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "32769"}], "9000/tcp": None}},
}


def command(config: DockerSandboxConfig | None = None, spec: ServerSpec = SPEC) -> tuple[str, ...]:
    return run_command(spec, "sha256:12", "finqa-0123456789ab", LABELS, "a1", config or DockerSandboxConfig())


def test_a_container_is_named_labelled_limited_and_published_on_loopback_alone() -> None:
    found = command()
    assert found[:2] == ("run", "--detach") and found[-1] == "sha256:12"
    expected = {
        *("--name=finqa-0123456789ab", "--pull=never", "--publish=127.0.0.1::8000"),
        *("--label=finqa.run=r1", "--label=finqa.host=here", "--label=finqa.provider=a1"),
        '--label=finqa.labels=["finqa.host", "finqa.run"]',
        *("--memory=1024m", "--memory-swap=1024m", "--cpus=1", "--pids-limit=512"),
        "--security-opt=no-new-privileges",
    }
    assert expected <= set(found)


def test_no_value_of_a_variable_is_in_the_command_line() -> None:
    found = command()
    assert {"--env=LEVEL", "--env=HOST", "--env=PORT", "--env=FINQA_REQUIRE_TOKEN"} <= set(found)
    assert not any("s3cret" in argument for argument in found)
    here = {"PATH": "/bin", "HTTPS_PROXY": "http://me:pass@proxy", "no_proxy": "x", "OPENAI_API_KEY": "k"}
    variables = run_variables(here, SPEC)
    own = {"HOST": "::", "LEVEL": "s3cret", "PORT": "8000", "FINQA_REQUIRE_TOKEN": "0"}
    assert variables == {"PATH": "/bin", **own}


@pytest.mark.parametrize("name", ["PATH", "HOME", "LD_PRELOAD", "DOCKER_HOST", "CONTAINERS_CONF", "*", "A*", "A=B", ""])
def test_a_variable_of_the_program_itself_or_a_pattern_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be passed to a container") as caught:
        container_variables(ServerSpec(image="stock:1", environment={name: "x"}))
    assert "Dockerfile" in caught.value.remedy


def test_limits_can_be_lifted_and_arguments_added() -> None:
    config = DockerSandboxConfig(memory_mib=0, cpus=0, pids=0, network="slirp4netns", arguments=("--gpus=all",))
    found = command(config)
    assert not any(argument.startswith(("--memory", "--cpus")) for argument in found)
    assert {"--pids-limit=-1", "--network=slirp4netns"} <= set(found)
    assert found[-2:] == ("--gpus=all", "sha256:12")


@pytest.mark.parametrize(
    "options",
    [
        {"network": "host"},
        {"network": "none"},
        {"arguments": ["--publish=0.0.0.0:80:8000"]},
        {"arguments": ["-p80:8000"]},
        {"arguments": ["--name", "mine"]},
        {"arguments": ["--rm"]},
        {"memory_mib": -1},
    ],
)
def test_options_that_would_lose_or_open_containers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DockerSandboxConfig.model_validate(options)


def test_names_are_ours_and_differ() -> None:
    assert is_name(new_name()) and new_name() != new_name()
    assert not is_name("postgres") and not is_name("finqa-1") and not is_name(f"x{new_name()}")


def test_listings_ask_for_containers_of_this_product_only() -> None:
    assert listing_command(LABELS) == (
        *("ps", "--quiet", "--no-trunc", "--all", "--filter=label=finqa.labels"),
        *("--filter=label=finqa.run=r1", "--filter=label=finqa.host=here"),
    )
    assert "--filter=status=running" in listing_command({}, running=True)


def test_podman_would_wait_ten_seconds_before_it_ends_a_container() -> None:
    assert remove_command("c", podman=False) == ("rm", "--force", "--volumes", "c")
    assert remove_command("c", podman=True) == ("rm", "--force", "--volumes", "--time=0", "c")


def test_an_image_is_marked_with_its_digest() -> None:
    assert build_arguments("finqa:a-1", "d1", "/x/Dockerfile", {"BUILD_MODE": "standalone"}) == (
        *("build", "--tag=finqa:a-1", "--label=finqa.image=d1", "--file=/x/Dockerfile"),
        "--build-arg=BUILD_MODE=standalone",
    )


@pytest.mark.parametrize("name", ["/finqa-0123456789ab", "finqa-0123456789ab"], ids=["docker", "podman"])
def test_an_inspection_is_read_with_the_labels_that_the_container_was_started_with(name: str) -> None:
    (found,) = parse_containers(json.dumps([{**ROW, "Name": name}]))
    assert (found.id, found.name, found.state) == ("4b69" * 16, "finqa-0123456789ab", "started")
    assert found.labels == LABELS and found.ports == {8000: 32769}
    assert found.created == pytest.approx(datetime(2026, 11, 25, 0, 33, 19, 567779, UTC).timestamp())


@pytest.mark.parametrize(
    ("status", "state"),
    [("created", "starting"), ("configured", "starting"), ("exited", "stopped"), ("dead", "stopped")],
)
def test_states_of_both_programs(status: str, state: str) -> None:
    row = {**ROW, "State": {"Status": status}, "NetworkSettings": {"Ports": {}}}
    (found,) = parse_containers(json.dumps([row]))
    assert (found.state, found.ports) == (state, {})


def test_a_container_of_another_product_has_no_labels_of_ours() -> None:
    (found,) = parse_containers(json.dumps([{**ROW, "Config": {"Labels": None}}]))
    assert found.labels == {}
    assert parse_containers("") == [] == parse_containers("[]\n")


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"ExitCode": 3}, "exited with code 3"),
        ({"ExitCode": 137, "OOMKilled": True}, "ran out of memory at its limit of 64 MiB"),
        ({"ExitCode": 137}, "was killed (exit code 137), as happens to a container that uses more memory"),
        ({"ExitCode": 127, "Error": "exec: no such file"}, "could not be run: exec: no such file"),
    ],
)
def test_how_a_container_ended(state: dict[str, Any], told: str) -> None:
    (found,) = parse_containers(json.dumps([{**ROW, "State": {"Status": "exited", **state}}]))
    assert ending_of(found, 64).startswith(told)
