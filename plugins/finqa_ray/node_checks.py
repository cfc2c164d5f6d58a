"""Checks of the nodes of a cluster for a run, computed from the facts of the nodes and of the controller."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

from finqa_cli.types import Check, NodeFacts, NodeNeeds

GIB = 2.0**30

FREE_SHARE = 0.95
"""Share of a device's memory that must be free, because the placement assumes that all of it is."""

SHARED_GIB = 2.0
"""Smallest size of /dev/shm in GiB. Ray's object store keeps parts of adapters and models there (0.25 GiB that this
process sends), and NCCL and vLLM their shared memory. Containers have 64 MB by default."""

FILES, FEWEST_FILES = 8192, 1024
"""Open files that Ray recommends (`ulimit -n 8192`), and that a replica needs for 1,000 requests at once."""

DISK_GB, LEAST_DISK_GB = 2.0, 0.2
"""Free space in GB in the temporary folder below which a node gets a warning, and fails: as in `machine_checks`."""

CLOCK_S = 2.0

LISTED = 3

SENT = "; the controller's are sent when the run starts"


def judge_nodes(facts: Sequence[NodeFacts], needs: NodeNeeds) -> list[Check]:
    """Return checks about all nodes, then those about each node; a node without problems has one passed check.

    Args:
        facts: Facts of the controller and of the nodes.
        needs: What a run needs on the nodes.
    """
    controller = next(each for each in facts if each.controller)
    nodes = [each for each in facts if not each.controller]
    found = [*_all_nodes(nodes, needs)]
    for node in nodes:
        wrong = list(_judge(node, controller, nodes, needs))
        found += wrong or [_finding(node, "ok", _summary(node))]
    return found


def _judge(node: NodeFacts, controller: NodeFacts, nodes: Sequence[NodeFacts], needs: NodeNeeds) -> Iterator[Check]:
    if node.left:
        yield _finding(node, "warn", f"it left the cluster: {node.left}", f"ray start --address {needs.address} on it")
        return
    if node.problem:
        yield _finding(
            node,
            "fail",
            f"the probe on it failed: {node.problem}",
            f"ray stop on it, then ray start --address {needs.address}, which prints why it cannot join",
        )
        return
    yield from _versions(node, controller)
    yield from _machine(node)
    yield from _network(node, controller, nodes, needs)
    if node.cpus >= 1:  # else neither an engine nor a learner is placed there
        yield from _model(node, [controller, *nodes], needs)
        yield from _devices(node, nodes, needs)
        for lack in node.lacks:
            where = f"{lack.remedy} on that node"
            yield _finding(node, "warn" if lack.status == "warn" else "fail", f"{lack.name}: {lack.detail}", where)


def _all_nodes(nodes: Sequence[NodeFacts], needs: NodeNeeds) -> Iterator[Check]:
    """Check how many nodes there are, and whether everyone who reaches them can run code on them."""
    live = [node for node in nodes if not node.left]
    named = ", ".join(node.address for node in live)
    joins = (
        "a machine that is not listed has not joined: `ray start` prints there why not, such as another Ray or Python"
    )
    detail = f"{len(live)} of the cluster at {needs.address}: {named}; {joins}"
    if not any(node.cpus >= 1 for node in live):
        remedy = f"ray start --address {needs.address} on each machine that is to run engines or learners"
        yield Check(
            name="nodes", status="fail", detail=f"none has a CPU for an engine or a learner ({named})", remedy=remedy
        )
    else:
        yield Check(name="nodes", status="ok", detail=detail)
    open_to = [node.address for node in live if not node.problem and not node.token]
    if not open_to or all(_is_loopback(node) for node in live):
        return
    yield Check(
        name="authentication",
        status="warn",
        detail=f"anyone who reaches the ports of {_listed(open_to)} can run code there: calls carry no token",
        remedy="ray get-auth-token --generate, then copy ~/.ray/auth_token to each machine and start all nodes again "
        "with RAY_AUTH_MODE=token; or keep a network that is private",
    )


def _versions(node: NodeFacts, controller: NodeFacts) -> Iterator[Check]:
    install = f"pip install 'finqa[ray,train]=={controller.finqa}' on that node, then start the node again"
    if not node.finqa:
        yield _finding(node, "fail", "finqa is not installed there", install)
    elif node.finqa != controller.finqa:
        yield _finding(node, "fail", f"finqa {node.finqa}, and the controller has {controller.finqa}", install)
    elif node.code != controller.code:
        yield _finding(
            node,
            "fail",
            f"finqa {node.finqa}, but with other source files than the controller's",
            "pip install --force-reinstall --no-deps WHEEL on that node, with the wheel of the controller",
        )
    if node.ray != controller.ray:
        yield _finding(
            node,
            "fail",
            f"Ray {node.ray}, and the controller has {controller.ray}",
            f"pip install ray=={controller.ray} on that node, then start the node again",
        )
    if _minor(node.python) != _minor(controller.python):
        yield _finding(
            node,
            "fail",
            f"Python {node.python}, and the controller has {controller.python}: what one sends the other cannot read",
            f"make that node's virtual environment with Python {_minor(controller.python)}, then start the node again",
        )


def _model(node: NodeFacts, others: Sequence[NodeFacts], needs: NodeNeeds) -> Iterator[Check]:
    if not needs.model or needs.ships:
        return
    copy = (
        f"copy the folder {needs.model} to the same path on that node"
        if needs.folder
        else f"hf download {needs.model} on that node, as the user who runs ray start"
    )
    if not node.model:
        yield _finding(node, "warn", f"the model {needs.model} is not there; it is sent when the run starts", copy)
        return
    seen: dict[str, list[str]] = {}
    for each in others:
        for name, digest in each.model.items():
            seen.setdefault(name, []).append(digest)
    known = {name: Counter(digests).most_common(1)[0][0] for name, digests in seen.items()}
    known |= next(each.model for each in others if each.controller)  # files of the controller take precedence
    differing = [name for name, digest in node.model.items() if known[name] != digest]
    lacking = [name for name in known if name.endswith(".safetensors") and name not in node.model]
    if differing:
        yield _finding(node, "warn", f"other files of {needs.model} than elsewhere: {_listed(differing)}{SENT}", copy)
    if lacking:
        yield _finding(node, "warn", f"files of {needs.model} are missing: {_listed(lacking)}{SENT}", copy)


def _devices(node: NodeFacts, nodes: Sequence[NodeFacts], needs: NodeNeeds) -> Iterator[Check]:
    """Check whether the cluster uses all GPUs of the node, and whether their memory is free."""
    if not needs.model or needs.ships:
        return
    there = len(node.devices)
    if there != int(node.gpus):
        yield _finding(
            node,
            "warn" if there > node.gpus else "fail",
            f"its driver reports {there} GPUs, and the cluster uses {node.gpus:g}",
            f"ray stop on that node, then ray start --address {needs.address} --num-gpus={there}",
        )
    elif not there and not any(other.devices for other in nodes):
        detail = f"no GPU; {needs.model} runs slowly on the CPU"
        yield _finding(node, "warn", detail, "--model embedded, or nodes with GPUs")
    taken = [
        f"device {number} has {device.free / GIB:.1f} of {device.total / GIB:.1f} GiB free"
        for number, device in enumerate(node.devices)
        if device.free < FREE_SHARE * device.total
    ]
    if taken:
        yield _finding(
            node,
            "warn",
            f"other processes use GPUs: {_listed(taken)}",
            "nvidia-smi on that node shows them; end them, or set CUDA_VISIBLE_DEVICES before ray start without them",
        )


def _machine(node: NodeFacts) -> Iterator[Check]:
    shared = node.shared_memory
    if shared is not None and shared < SHARED_GIB * GIB:
        yield _finding(
            node,
            "warn",
            f"/dev/shm has {shared / GIB:.2f} GiB, less than {SHARED_GIB:g}: Ray keeps objects on disk then",
            "docker run --shm-size=8g for a container, or sudo mount -o remount,size=8G /dev/shm on that node",
        )
    if node.open_files is not None and node.open_files < FILES:
        yield _finding(
            node,
            "fail" if node.open_files < FEWEST_FILES else "warn",
            f"{node.open_files} open files are allowed, less than {FILES}",
            "ulimit -n 65536 in the shell of ray start on that node, then start the node again",
        )
    if node.disk_free is None or node.disk_free < DISK_GB * 1e9:
        few = node.disk_free is None or node.disk_free < LEAST_DISK_GB * 1e9
        free = "cannot be written" if node.disk_free is None else f"has {node.disk_free / 1e9:.2f} GB free"
        yield _finding(
            node,
            "fail" if few else "warn",
            f"{node.disk}, where versions and states of the learner are written, {free}",
            "export TMPDIR=/a/folder/with/space on that node, then start the node again",
        )


def _network(node: NodeFacts, controller: NodeFacts, nodes: Sequence[NodeFacts], needs: NodeNeeds) -> Iterator[Check]:
    machines = {other.machine for other in (controller, *nodes) if other.machine}
    if _is_loopback(node) and len(machines) > 1:
        yield _finding(
            node,
            "fail",
            "its address is a loopback address, which other machines cannot reach",
            f"ray start --address {needs.address} --node-ip-address=ADDRESS on it, with its address in the network",
        )
    barred = sorted(node.unreachable.items(), key=lambda each: each[1])
    for reason, group in groupby(barred, key=lambda each: each[1].partition(": ")[2]):
        names = [f"{name} {why.partition(':')[0]}" for name, why in group]
        yield _finding(
            node,
            "fail",
            f"it cannot reach {_listed(names)}: {reason}",
            "change the firewall so that nodes reach each other on TCP ports 1024 to 65535, all free ones",
        )
    if node.apart and not barred:
        yield _finding(
            node,
            "fail",
            f"learner processes there do not join those of other nodes over gloo: {node.apart}",
            "export GLOO_SOCKET_IFNAME=INTERFACE on that node, with the one of its address in the network (ip addr), "
            "then ray stop and ray start",
        )
    if abs(node.clock_s) - node.clock_error_s > CLOCK_S:
        ahead = "ahead of" if node.clock_s > 0 else "behind"
        yield _finding(
            node,
            "warn",
            f"its clock is {abs(node.clock_s):.1f} s {ahead} the controller's (± {node.clock_error_s:.1f} s)",
            "sudo timedatectl set-ntp true on that node, or chronyc makestep",
        )


def _finding(node: NodeFacts, status: Literal["ok", "warn", "fail"], detail: str, remedy: str = "") -> Check:
    return Check(name=f"node {node.address}", status=status, detail=detail, remedy=remedy)


def _summary(node: NodeFacts) -> str:
    sizes = [f"{node.cpus:g} CPUs", f"{node.memory / GIB:.0f} GiB of memory"]
    if node.devices:
        sizes.append(f"{len(node.devices)} GPUs ({node.devices[0].name}, {node.devices[0].total / GIB:.0f} GiB)")
    disk = "" if node.disk_free is None else f", {node.disk_free / 1e9:.0f} GB free in {node.disk}"
    return f"finqa {node.finqa}, Ray {node.ray}, Python {node.python}, {', '.join(sizes)}{disk}"


def _is_loopback(node: NodeFacts) -> bool:
    host = node.address
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        host = host.rpartition(":")[0]  # several nodes with one address have a suffix; it may also be a name
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return node.address.partition(":")[0] == "localhost"


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
