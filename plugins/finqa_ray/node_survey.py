"""Collects facts about each node of a cluster, with one probe pinned to each node."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from finqa_cli.types import Check, CudaDevice, NodeFacts
from finqa_ray import cluster, node_probe
from finqa_ray.node_probe import NodeProbe

ANSWER_S = 90.0
"""Seconds that a node may take to start a process, import finqa there and answer."""

REACH_S = 60.0

ROUNDS = 5
"""Number of readings of a clock; the quickest one is used."""


def survey(
    address: str, model: str, components: Sequence[tuple[str, str]], settings: Mapping[str, Any]
) -> list[NodeFacts]:
    """Return facts of this process, then of each node of the cluster, also of those that have left it.

    Args:
        address: As `cluster.join` takes it.
        model: Folder or hub id of the base model; empty: no model is looked for.
        components: Kind and name of the engine and the learner that will run on the nodes.
        settings: Those of the hook `survey_nodes`.

    Raises:
        ServiceUnavailableError: There is no cluster.
        ConfigError: The cluster has another version of Ray or Python.
    """
    joined = cluster.join(address)
    try:
        here = NodeFacts(address="controller", controller=True)
        controller = _with_answers(here, NodeProbe().look(model, (), settings))
        return [controller, *_Survey(ray.nodes()).ask(model, components, settings)]
    finally:
        cluster.leave(joined)


def measure(address: str) -> list[NodeFacts]:
    """Return the resources of each node, as Ray reports them, and GPUs as the driver reports them to a probe.

    Raises:
        ServiceUnavailableError: There is no cluster.
        ConfigError: The cluster has another version of Ray or Python.
    """
    joined = cluster.join(address)
    try:
        return list(_Survey(ray.nodes()).measure())
    finally:
        cluster.leave(joined)


class _Survey:
    """Probes on all live nodes."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        live = [node for node in nodes if node["Alive"]]
        addresses = Counter(node["NodeManagerAddress"] for node in live)
        self._nodes: dict[str, Mapping[str, Any]] = {}
        for node in live:
            address = node["NodeManagerAddress"]
            name = address if addresses[address] == 1 else f"{address}:{node['NodeManagerPort']}"
            self._nodes[name] = node
        self._left = {
            node["NodeManagerAddress"]: node.get("DeathReasonMessage") or "it does not answer"
            for node in nodes
            if not node["Alive"] and node["NodeManagerAddress"] not in addresses
        }
        self._problems: dict[str, str] = {}

    def ask(
        self, model: str, components: Sequence[tuple[str, str]], settings: Mapping[str, Any]
    ) -> Iterator[NodeFacts]:
        probes = _start_all(self._nodes)
        try:
            plain = {name: _plain(settings[name]) for name in settings}
            looks = {name: probe.look.remote(model, tuple(components), plain) for name, probe in probes.items()}
            seen = self._gather(looks, ANSWER_S)
            hosts = {name: self._nodes[name]["NodeManagerAddress"] for name in seen}
            ports = self._gather({name: probes[name].listen.remote(hosts[name]) for name in seen}, REACH_S)
            places = {name: (hosts[name], port) for name, port in ports.items()}
            others = {name: {each: places[each] for each in places if each != name} for name in seen}
            barred = self._gather({name: probes[name].reach.remote(others[name]) for name in seen}, REACH_S)
            apart = self._meet(probes, hosts, ports) if ("learner", "ray:torch") in components else {}
            clocks = {name: self._clock(name, probes[name]) for name in seen if name not in self._problems}
        finally:
            for probe in probes.values():
                ray.kill(probe)
        for name, node in self._nodes.items():
            if name in self._problems:
                yield replace(_offered(name, node), problem=self._problems[name])
            else:
                offset, error = clocks[name]
                facts = _with_answers(_offered(name, node), seen[name])
                facts = replace(facts, unreachable=barred.get(name, {}), apart=apart.get(name, ""))
                yield replace(facts, clock_s=offset, clock_error_s=error)
        yield from (NodeFacts(address=address, left=str(reason)) for address, reason in self._left.items())

    def _meet(self, probes: Mapping[str, Any], hosts: Mapping[str, str], reached: Mapping[str, int]) -> dict[str, str]:
        """Return for each node why its learner process would not join those of the others; empty if it would."""
        names = [name for name in hosts if name in reached]
        if len(names) < 2:
            return {}
        port = self._gather({names[0]: probes[names[0]].free_port.remote(hosts[names[0]])}, REACH_S).get(names[0])
        if port is None:
            return {}
        leader = (hosts[names[0]], port)
        calls = {name: probes[name].meet.remote(rank, len(names), leader) for rank, name in enumerate(names)}
        return self._gather(calls, REACH_S)

    def _clock(self, name: str, probe: Any) -> tuple[float, float]:
        """Return how far a node's clock is ahead of this one, and the largest error of that, in seconds.

        The node reads its clock at some moment of the round trip, so its middle is wrong by at most half the trip.
        """
        rounds = [(float("inf"), 0.0)]
        for _ in range(ROUNDS):
            began, started = time.time(), time.perf_counter()
            try:
                read: float = ray.get(probe.clock.remote(), timeout=REACH_S)
            except RayError as error:
                self._problems.setdefault(name, str(error).splitlines()[0])
                break
            half = (time.perf_counter() - started) / 2
            rounds.append((half, read - began - half))
        half, offset = min(rounds)
        return offset, half

    def measure(self) -> Iterator[NodeFacts]:
        with_gpus = {name: node for name, node in self._nodes.items() if node["Resources"].get("GPU")}
        probes = _start_all(with_gpus)
        try:
            devices = self._gather({name: probe.devices.remote() for name, probe in probes.items()}, ANSWER_S)
        finally:
            for probe in probes.values():
                ray.kill(probe)
        for name, node in self._nodes.items():
            yield _with_answers(_offered(name, node), {"devices": devices.get(name, ())})

    def _gather(self, references: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answers by node; the reason for a missing answer is recorded as a problem of the node."""
        if references:
            ray.wait(list(references.values()), num_returns=len(references), timeout=seconds)
        found: dict[str, Any] = {}
        for name, reference in references.items():
            try:
                found[name] = ray.get(reference, timeout=0)
            except RayError as error:
                late = isinstance(error, ray.exceptions.GetTimeoutError)
                lines = [line for line in str(error).splitlines() if line.strip()]
                why = f"no answer within {seconds:g} s" if late else lines[-1] if lines else type(error).__name__
                self._problems.setdefault(name, why)
        return found


def _offered(name: str, node: Mapping[str, Any]) -> NodeFacts:
    """Return a node's resources that Ray uses."""
    offered = node["Resources"]
    return NodeFacts(
        address=name,
        cpus=offered.get("CPU", 0.0),
        gpus=offered.get("GPU", 0.0),
        memory=offered.get("memory", 0.0),
    )


def _start_all(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    ray.cloudpickle.register_pickle_by_value(node_probe)
    try:
        return {name: _start(node) for name, node in nodes.items()}
    finally:
        ray.cloudpickle.unregister_pickle_by_value(node_probe)


def _start(node: Mapping[str, Any]) -> Any:
    pinned = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
    return ray.remote(NodeProbe).options(num_cpus=0, scheduling_strategy=pinned).remote()


def _with_answers(facts: NodeFacts, found: Mapping[str, Any]) -> NodeFacts:
    """Return the facts with what a probe answered."""
    answers = dict(found)
    answers["devices"] = tuple(CudaDevice(**device) for device in found["devices"])
    answers["lacks"] = tuple(Check(**check) for check in found.get("lacks", ()))
    return replace(facts, **answers)


def _plain(value: Any) -> Any:
    """Return JSON values unchanged, with containers copied; anything else, such as a path, becomes text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
