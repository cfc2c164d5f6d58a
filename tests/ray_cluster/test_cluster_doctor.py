"""`finqa doctor --cluster` on nodes that really differ: each mismatch that is planted is found on its node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ray_cluster.conftest import wait_for, wait_for_nodes
from ray_cluster.nodes import Cluster, Node

import finqa_cli
from finqa_cli import __version__
from finqa_cli.errors import ConfigError

pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")

MODEL = "acme/tiny"
HIDE_TORCH = """
import importlib.machinery as machinery
found = machinery.PathFinder.find_spec
machinery.PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None: None if name == "torch" else found(name, path, target)
)
"""
DRIVER = "#!/bin/sh\necho 'H100, 20480, 81920'\necho 'H100, 81000, 81920'\n"


def run_doctor(cluster: Cluster, folder: Path, *words: str) -> dict[str, Any]:
    """The document of the command, in a process of its own, whose working directory has no finqa."""
    command = ["doctor", "--cluster", f"--cluster-address={cluster.address}", "--json", "--sandbox=local"]
    done = subprocess.run(
        [sys.executable, "-m", "finqa_cli", *command, "--set=learner.name=ray:torch", *words],
        cwd=folder,
        env={**os.environ, "FINQA_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout, done.stderr[-3000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def findings(document: Mapping[str, Any], node: Node) -> dict[str, str]:
    """Detail -> remedy of what is wrong with a node; a small /dev/shm is a matter of this machine."""
    checks = [check for check in document["checks"] if check["name"] == f"node {node.address}" and check["remedy"]]
    return {check["detail"]: check["remedy"] for check in checks if "/dev/shm" not in check["detail"]}


def cached(folder: Path, model: Path, *names: str) -> Path:
    """The model in the hub's cache of a node, of which only these files where names are given."""
    cache = folder / "home" / ".cache" / "huggingface" / "hub" / "models--acme--tiny"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    snapshot = cache / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for path in model.iterdir():
        if path.is_file() and (not names or path.name in names):
            shutil.copy(path, snapshot)
    return snapshot


def other_finqa(folder: Path) -> Path:
    """A copy of finqa that the node imports; its folder."""
    package = Path(finqa_cli.__file__).parent
    return shutil.copytree(package, folder / "site" / "finqa_cli", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture
def planted(two_nodes: Cluster, tiny_model: Path) -> Iterator[tuple[Node, Node, Node]]:
    """Three more nodes, with all that differs."""

    def outdated(folder: Path) -> Mapping[str, str]:
        start = other_finqa(folder) / "__init__.py"
        start.write_text(start.read_text().replace(__version__, "0.0.9"))
        (folder / "site" / "sitecustomize.py").write_text(HIDE_TORCH)
        with (cached(folder, tiny_model) / "config.json").open("a") as file:
            file.write("\n")
        (folder / "bin").mkdir()
        (folder / "bin" / "nvidia-smi").write_text(DRIVER)
        (folder / "bin" / "nvidia-smi").chmod(0o755)
        return {"PYTHONPATH": str(folder / "site"), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}

    def edited(folder: Path) -> Mapping[str, str]:
        with (other_finqa(folder) / "boundary.py").open("a") as file:
            file.write("# changed here only\n")
        return {"PYTHONPATH": str(folder / "site"), "HF_HUB_OFFLINE": "1"}

    def bare(folder: Path) -> Mapping[str, str]:
        (folder / "site" / "finqa_cli").mkdir(parents=True)
        (folder / "site" / "finqa_cli" / "__init__.py").write_text("raise ImportError\n")
        cached(folder, tiny_model, "config.json")
        return {"PYTHONPATH": str(folder / "site")}

    for clean in two_nodes.nodes:
        if clean.running():
            cached(clean.folder, tiny_model)
    nodes = (
        two_nodes.add(prepare=outdated, open_files=4096),
        two_nodes.add(prepare=edited, open_files=1000),
        two_nodes.add(prepare=bare),
    )
    try:
        wait_for_nodes(5)
        yield nodes
    finally:
        for node in nodes:
            node.close()
            two_nodes.nodes.remove(node)
        wait_for_nodes(2)


def test_a_clean_pair_has_no_finding(two_nodes: Cluster, tmp_path: Path) -> None:
    document = run_doctor(two_nodes, tmp_path, "--engine=ray:transformers", "--model=embedded")
    live = [node for node in two_nodes.nodes if node.running()]
    assert [findings(document, node) for node in live] == [{}, {}]
    named = {check["name"]: check for check in document["checks"]}
    assert named["nodes"]["status"] == "ok" and "authentication" not in named
    clocks = [node["clock_s"] for node in document["nodes"] if node["address"] in {each.address for each in live}]
    assert len(clocks) == 2 and all(abs(clock) < 1.0 for clock in clocks)


def test_each_mismatch_is_found_on_its_node(
    two_nodes: Cluster, planted: tuple[Node, Node, Node], tmp_path: Path
) -> None:
    document = run_doctor(two_nodes, tmp_path, "--engine=ray:vllm", f"--model={MODEL}")
    clean = [node for node in two_nodes.nodes if node.running() and node not in planted]
    setup = {"vllm: not set up: finqa setup vllm": "finqa setup vllm on that node"}
    assert [findings(document, node) for node in clean] == [setup, setup]
    install = f"pip install 'finqa[ray,train]=={__version__}' on that node, then start the node again"
    expected: list[dict[str, str]] = [
        {
            f"finqa 0.0.9, and the controller has {__version__}": install,
            f"other files of {MODEL} than elsewhere: config.json": f"hf download {MODEL} on that node",
            "4096 open files are allowed": "ulimit -n 65536",
            "torch: needs torch": "pip install 'finqa[train]' on that node",
            "its driver reports 2 GPUs, and the cluster uses 0": "--num-gpus=2",
            "device 0 has 20.0 of 80.0 GiB free": "nvidia-smi on that node",
            **setup,
        },
        {
            f"finqa {__version__}, but with other source files": "pip install --force-reinstall --no-deps WHEEL",
            f"the model {MODEL} is not there": f"hf download {MODEL} on that node",
            "1000 open files are allowed": "ulimit -n 65536",
            **setup,
        },
        {
            "finqa is not installed there": install,
            f"files of {MODEL} are missing: model.safetensors": f"hf download {MODEL} on that node",
        },
    ]
    for node, wanted in zip(planted, expected, strict=True):
        found = findings(document, node)
        for detail, remedy in wanted.items():
            assert [name for name in found if detail in name and remedy in found[name]], (node.address, detail, found)
        assert len(found) == len(wanted), found
    assert sum(map(len, expected)) >= 12

    planted[2].kill()
    import ray

    wait_for(
        lambda: any(not node["Alive"] and node["NodeManagerAddress"] == planted[2].address for node in ray.nodes()), 30
    )
    found = findings(run_doctor(two_nodes, tmp_path, "--engine=ray:transformers", "--model=embedded"), planted[2])
    (remedy,) = found.values()
    assert remedy == f"ray start --address {two_nodes.address} on it"


@pytest.mark.parametrize(("ray_version", "python"), [("2.1.0", ""), ("", "3.1.4")])
def test_another_ray_or_python_of_the_cluster_is_named(ray_version: str, python: str) -> None:
    import platform

    import ray
    from ray._private.utils import check_version_info

    from finqa_ray.cluster import check_versions

    theirs = {"ray_version": ray_version or ray.__version__, "python_version": python or platform.python_version()}
    with pytest.raises(RuntimeError) as raised:
        check_version_info(theirs, "node 127.0.0.2")
    with pytest.raises(ConfigError, match="The cluster runs Ray") as caught:
        check_versions(str(raised.value))
    assert (f"pip install ray=={ray_version}" if ray_version else f"with Python {python}") in caught.value.remedy
