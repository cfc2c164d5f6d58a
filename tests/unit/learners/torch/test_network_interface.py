"""Learner processes of two machines find each other, also where their host names are loopback addresses."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from finqa_plugins.learners.torch.distributed import network_interface
from finqa_plugins.learners.torch.distributed.network_interface import GLOO, NCCL, use_interface_to

PORT = 29_777

JOIN = """
import os, socket
import torch
import torch.distributed as dist
from finqa_plugins.learners.torch.distributed import distributed_learner
assert socket.gethostbyname(socket.gethostname()) == "127.0.1.1"
processes = distributed_learner.join()
ranks = processes.gather(processes.rank)
group = processes.mesh(torch.device("cpu")).get_group()
total = torch.ones(())
dist.all_reduce(total, group=group)
print(ranks, int(total), os.environ["NCCL_SOCKET_IFNAME"])
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (GLOO, NCCL):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)


def test_the_choice_of_the_user_and_one_machine_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert use_interface_to("127.0.0.1") == use_interface_to("::1") == "" and GLOO not in os.environ
    monkeypatch.setattr(network_interface, "_interface", lambda address: "eth7" if address else "")
    monkeypatch.setattr(
        network_interface, "_source", lambda host: "10.0.0.7" if host == network_interface._ANYWHERE else ""
    )
    monkeypatch.setenv(GLOO, "ib0")
    assert use_interface_to(socket.gethostname()) == "eth7", "the interface of the default route"
    assert (os.environ[GLOO], os.environ[NCCL]) == ("ib0", "eth7")


def test_without_a_route_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_interface, "_source", lambda host: "")
    assert use_interface_to("no-such-host.invalid") == "" and GLOO not in os.environ and NCCL not in os.environ


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """Two network namespaces with the addresses 10.77.0.1 and 10.77.0.2; their names."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "mount", "hostname"))):
        pytest.skip("needs root, ip and unshare")
    tag = secrets.token_hex(3)
    names, cables = [f"finqa-{tag}-{end}" for end in "ab"], [f"fq{tag}{end}" for end in "ab"]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for number, (name, cable) in enumerate(zip(names, cables, strict=True), 1):
            run("ip", "link", "set", cable, "netns", name)
            run("ip", "-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", cable)
            run("ip", "-n", name, "link", "set", cable, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "netns", "exec", names[0], "unshare", "--mount", "--uts", "true")
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    else:
        yield cables
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)


@pytest.mark.timeout(180)
def test_two_machines_whose_names_are_loopback_addresses_join(machines: list[str], tmp_path: Path) -> None:
    started = []
    for rank, cable in enumerate(machines):
        hosts = tmp_path / f"hosts-{rank}"
        hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 node{rank}\n")
        space = f"finqa-{cable[2:-1]}-{cable[-1]}"
        inside = f'mount --bind {hosts} /etc/hosts && hostname node{rank} && exec "$0" -c "$1"'
        variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": PORT}
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        command = [
            "ip",
            "netns",
            "exec",
            space,
            "unshare",
            "--mount",
            "--uts",
            "sh",
            "-c",
            inside,
            sys.executable,
            JOIN,
        ]
        started.append(
            subprocess.Popen(
                command,
                env={**environment, "MASTER_ADDR": "10.77.0.1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [process.communicate(timeout=150) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [out.strip() for out, _ in said] == [f"[0, 1] 2 {cable}" for cable in machines], said
