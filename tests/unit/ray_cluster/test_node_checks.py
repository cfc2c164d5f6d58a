"""What `finqa doctor --cluster` says about nodes: each mismatch is found, alone, with what fixes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.diagnostics import diagnose
from finqa_cli.diagnostics.diagnose import cluster_report
from finqa_cli.errors import ServiceUnavailableError
from finqa_cli.settings import Settings
from finqa_cli.types import Check, CudaDevice, NodeFacts, NodeNeeds
from finqa_ray import node_probe
from finqa_ray.node_checks import judge_nodes
from finqa_ray.node_probe import NodeProbe, digest_model

GB = 2.0**30
FILES = {"config.json": "aa", "model.safetensors": "bb"}
GPU = CudaDevice(name="H100", free=79 * GB, total=80 * GB)
SOUND = NodeFacts(
    address="10.0.0.7",
    machine="boot-7",
    finqa="0.1.0",
    code="c0de",
    ray="2.60.0",
    python="3.11.7",
    model=FILES,
    cpus=16.0,
    gpus=2.0,
    devices=(GPU, GPU),
    memory=256 * GB,
    shared_memory=64 * GB,
    open_files=65536,
    disk="/tmp",
    disk_free=500e9,
    clock_s=0.4,
    clock_error_s=0.01,
    token=True,
)
CONTROLLER = replace(SOUND, address="controller", controller=True, machine="boot-1", devices=(), cpus=0.0, gpus=0.0)
NEEDS = NodeNeeds(address="10.0.0.1:6379", model="Qwen/Qwen3-4B")
FOLDER = replace(NEEDS, model="/models/qwen", folder=True)

PLANTED: Mapping[str, tuple[Mapping[str, Any], NodeNeeds, str, str, str]] = {
    "no finqa": (
        {"finqa": "", "code": ""},
        NEEDS,
        "fail",
        "finqa is not installed",
        "pip install 'finqa[ray,train]==0.1.0'",
    ),
    "another finqa": ({"finqa": "0.0.9"}, NEEDS, "fail", "finqa 0.0.9, and", "pip install 'finqa[ray,train]==0.1.0'"),
    "other source": ({"code": "beef"}, NEEDS, "fail", "other source files", "pip install --force-reinstall --no-deps"),
    "another Ray": ({"ray": "2.59.0"}, NEEDS, "fail", "Ray 2.59.0, and", "pip install ray==2.60.0 on that node"),
    "another Python": ({"python": "3.12.1"}, NEEDS, "fail", "Python 3.12.1, and", "with Python 3.11"),
    "no model": ({"model": {}}, NEEDS, "warn", "is sent when the run", "hf download Qwen/Qwen3-4B on that node"),
    "no folder": ({"model": {}}, FOLDER, "warn", "is sent when the run starts", "copy the folder /models/qwen to"),
    "another model": (
        *({"model": {**FILES, "config.json": "zz"}}, FOLDER, "warn", "than elsewhere: config.json"),
        "copy the folder /models/qwen to",
    ),
    "half a model": ({"model": {"config.json": "aa"}}, NEEDS, "warn", "missing: model.safetensors", "hf download Qwen"),
    "GPUs without the cluster": ({"gpus": 1.0}, NEEDS, "warn", "2 GPUs, and the cluster uses 1", "--num-gpus=2"),
    "GPUs that are not there": ({"devices": ()}, NEEDS, "fail", "0 GPUs, and the cluster uses 2", "--num-gpus=0"),
    "a GPU in use": (
        *({"devices": (GPU, replace(GPU, free=20 * GB))}, NEEDS, "warn", "device 1 has 20.0 of 80.0 GiB free"),
        "nvidia-smi on that node",
    ),
    "small shared memory": ({"shared_memory": 2.0**26}, NEEDS, "warn", "/dev/shm has 0.06 GiB", "--shm-size=8g"),
    "few open files": ({"open_files": 4096}, NEEDS, "warn", "4096 open files", "ulimit -n 65536"),
    "too few open files": ({"open_files": 256}, NEEDS, "fail", "256 open files", "ulimit -n 65536"),
    "a full disk": ({"disk_free": 1e8}, NEEDS, "fail", "0.10 GB free", "export TMPDIR="),
    "a disk that is nearly full": ({"disk_free": 1e9}, NEEDS, "warn", "1.00 GB free", "export TMPDIR="),
    "a folder that cannot be written": ({"disk_free": None}, NEEDS, "fail", "cannot be written", "export TMPDIR="),
    "a firewall": (
        *({"unreachable": {"10.0.0.8": "port 31234: timed out"}}, NEEDS, "fail", "10.0.0.8 port 31234: timed out"),
        "change the firewall",
    ),
    "a learner that does not join": (
        *({"apart": "Gloo connectFullMesh failed"}, NEEDS, "fail", "over gloo: Gloo connectFullMesh failed"),
        "export GLOO_SOCKET_IFNAME=INTERFACE",
    ),
    "a clock ahead": ({"clock_s": 2.1}, NEEDS, "warn", "2.1 s ahead of the controller's", "timedatectl set-ntp true"),
    "a clock behind": ({"clock_s": -90.0}, NEEDS, "warn", "90.0 s behind the controller's", "timedatectl set-ntp true"),
    "no vLLM": (
        {"lacks": (Check(name="vllm", status="fail", detail="not set up", remedy="finqa setup vllm"),)},
        *(NEEDS, "fail", "vllm: not set up", "finqa setup vllm on that node"),
    ),
    "no answer": ({"problem": "no answer within 90 s"}, NEEDS, "fail", "no answer within 90 s", "ray stop on it"),
    "a node that left": (
        {"left": "it does not answer"},
        NEEDS,
        "warn",
        "it left the",
        "ray start --address 10.0.0.1:6379",
    ),
    "a loopback address": ({"address": "127.0.0.1"}, NEEDS, "fail", "a loopback address", "--node-ip-address=ADDRESS"),
}


def judged(*nodes: NodeFacts, needs: NodeNeeds = NEEDS, controller: NodeFacts = CONTROLLER) -> list[Check]:
    return judge_nodes([controller, *nodes], needs)


def wrong(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.status != "ok"]


@pytest.mark.parametrize("needs", [NEEDS, FOLDER])
def test_nothing_is_wrong_with_a_clean_pair(needs: NodeNeeds) -> None:
    checks = judged(SOUND, replace(SOUND, address="10.0.0.8", machine="boot-8"), needs=needs)
    assert [(check.name, check.status) for check in checks] == [
        *(("nodes", "ok"), ("node 10.0.0.7", "ok"), ("node 10.0.0.8", "ok")),
    ]
    assert "10.0.0.7, 10.0.0.8" in checks[0].detail and "2 GPUs (H100, 80 GiB)" in checks[1].detail


@pytest.mark.parametrize("name", PLANTED)
def test_a_mismatch_is_found_alone_with_its_remedy(name: str) -> None:
    change, needs, status, detail, remedy = PLANTED[name]
    node = replace(SOUND, address="10.0.0.9", machine="boot-9")
    checks = judged(SOUND, replace(node, **change), needs=needs)
    (check,) = wrong(checks)
    assert check.name == f"node {change.get('address', '10.0.0.9')}" and check.status == status
    assert detail in check.detail and remedy in check.remedy
    assert judged(SOUND, node, needs=needs)[-1].status == "ok"


@given(st.lists(st.sampled_from(sorted(PLANTED)), min_size=1, max_size=6, unique=True))
def test_mismatches_of_several_nodes_are_each_found(names: list[str]) -> None:
    nodes = [replace(SOUND, address=f"10.0.1.{place}", machine=f"m{place}") for place in range(len(names))]
    planted = [replace(node, **PLANTED[name][0]) for name, node in zip(names, nodes, strict=True)]
    found = wrong(judged(SOUND, *planted, needs=replace(NEEDS, folder=False)))
    assert {check.name for check in found} == {f"node {node.address}" for node in planted}


def test_a_cluster_without_tokens_is_open_unless_it_is_one_machine() -> None:
    open_to_all = replace(SOUND, token=False)
    (check,) = wrong(judged(open_to_all))
    assert (check.name, check.status) == ("authentication", "warn")
    assert "10.0.0.7" in check.detail and "RAY_AUTH_MODE=token" in check.remedy
    here = replace(open_to_all, address="127.0.0.3", machine=CONTROLLER.machine)
    assert not wrong(judged(here, replace(here, address="127.0.0.4")))


def test_a_head_that_runs_nothing_needs_no_model_and_no_gpu() -> None:
    lack = Check(name="vllm", status="fail", detail="not set up", remedy="finqa setup vllm")
    head = replace(SOUND, address="10.0.0.1", cpus=0.0, model={}, devices=(), gpus=0.0, lacks=(lack,))
    assert not wrong(judged(head, SOUND))
    (check,) = wrong(judged(head))
    assert (check.name, check.status) == ("nodes", "fail") and check.remedy.startswith(
        "ray start --address 10.0.0.1:6379"
    )


def test_the_model_that_ships_needs_no_gpu_and_others_do() -> None:
    cpu = replace(SOUND, devices=(), gpus=0.0)
    (check,) = wrong(judged(cpu))
    assert "runs slowly on the CPU" in check.detail and check.remedy.startswith("--model embedded")
    assert not wrong(judged(replace(cpu, model={}), needs=replace(NEEDS, ships=True)))


def test_a_clock_is_not_blamed_for_a_slow_network() -> None:
    assert not wrong(judged(replace(SOUND, clock_s=2.5, clock_error_s=0.6)))


def test_what_cannot_be_asked_is_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(settings: Settings) -> list[NodeFacts]:
        raise ServiceUnavailableError("No Ray cluster can be reached.", remedy="--set cluster.address=local")

    monkeypatch.setattr(diagnose, "survey", unreachable)
    (check,) = cluster_report(Settings.model_validate({"engine": {"name": "ray:vllm"}})).checks
    assert (check.name, check.status, check.remedy) == ("cluster", "fail", "--set cluster.address=local")


def test_settings_that_put_nothing_on_nodes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "survey", lambda settings: [CONTROLLER, SOUND])
    report = cluster_report(Settings.model_validate({"engine": {"name": "vllm"}}))
    assert report.checks[0].remedy.startswith("--engine ray:vllm") and report.checks[0].status == "warn"
    assert [node["address"] for node in report.document] == ["controller", "10.0.0.7"]


def test_the_probe_sees_this_machine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    facts = NodeProbe().look(str(tmp_path), (("engine", "nosuch"),), MappingProxyType({}))
    assert facts["finqa"] and len(facts["code"]) == 64 and facts["memory"] > 2**28 and facts["disk_free"] > 0
    assert list(facts["model"]) == ["config.json"]
    assert "nosuch" in facts["lacks"][0]["detail"]
    probe = NodeProbe()
    port = probe.listen("127.0.0.1")
    assert probe.reach({"here": ("127.0.0.1", port)}) == {}
    assert probe._listening is not None
    probe._listening.close()
    assert list(probe.reach({"here": ("127.0.0.1", port)})) == ["here"]


def test_nodes_meet_as_learner_processes_do_or_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = ("127.0.0.1", NodeProbe().free_port("127.0.0.1"))
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(lambda rank: NodeProbe().meet(rank, 2, leader), range(2)))
    assert said == ["", ""]
    monkeypatch.setattr(node_probe, "MEET_S", 0.2)
    assert NodeProbe().meet(0, 2, leader) == "no answer within 0.2 s", "the other one does not come"
    monkeypatch.setattr(node_probe, "MEETING", "raise RuntimeError('Gloo connectFullMesh failed')")
    monkeypatch.setattr(node_probe, "MEET_S", 30.0)
    assert NodeProbe().meet(0, 2, leader) == "RuntimeError: Gloo connectFullMesh failed"


@pytest.mark.parametrize("block", [0, 31, 63])
def test_a_large_file_that_differs_is_noticed_where_it_is_looked_at(block: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(40 * 2**20)
    before = digest_model(str(tmp_path))
    with path.open("r+b") as file:
        file.seek((40 * 2**20 - 2**16) * block // 63)
        file.write(b"x")
    assert digest_model(str(tmp_path)) != before
    with path.open("r+b") as file:
        file.truncate(40 * 2**20 + 1)
    assert digest_model(str(tmp_path)) != before


def test_a_model_that_is_nowhere_has_no_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert digest_model(str(tmp_path / "nothing")) == {} == digest_model("acme/nosuch-model")
