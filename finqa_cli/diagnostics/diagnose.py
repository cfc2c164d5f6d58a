"""Finds what prevents a run. All checks run at once, for some seconds; only those of a cluster start anything."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import platform
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pluggy import HookCaller

from finqa_cli import __version__
from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots
from finqa_cli.diagnostics.machine_checks import CHECKS, count, model_size, modelless, plan_report
from finqa_cli.errors import ConfigError, FinqaError, PluginError
from finqa_cli.extend import Component, PluginReport, missing_requirements, registry
from finqa_cli.local_models import local_model
from finqa_cli.masking import Masker
from finqa_cli.processes import host_name
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import ENVIRONMENT, Loaded, Settings, is_embedded, to_public_dict
from finqa_cli.types import Check, ExecutionSpec, NodeFacts, NodeNeeds, PolicyVersion, SandboxInfo
from finqa_cli.wiring.build import make_engine, make_learner, make_provider, open_environment
from finqa_cli.wiring.cluster_nodes import base_model, judge_nodes, name_on_cluster, on_nodes, survey
from finqa_cli.wiring.placing import visible_devices
from finqa_cli.wiring.policies import check_fit, resolve
from finqa_cli.wiring.sandbox_owners import HOST_LABEL, reap_command, strays

DEADLINE_S = 20.0
"""Time limit of all probes together, in seconds. On a busy machine the import of torch or a cloud SDK takes several."""

STATUSES = get_args(get_type_hints(Check)["status"])


@dataclass(frozen=True, slots=True)
class Probe:
    """A function that runs in its own thread and returns checks.

    Attributes:
        name: Name of the check if the function raises or hangs.
        look: The function.
        vital: Whether an exception or a timeout is a failed check; otherwise nothing is reported.
    """

    name: str
    look: Callable[[], Sequence[Check]]
    vital: bool = True


def examine(loaded: Loaded | ConfigError, *, deadline_s: float = DEADLINE_S) -> tuple[Check, ...]:
    """Return all findings in a fixed order. Never raises, and returns within the deadline even if a probe hangs.

    Args:
        loaded: The settings, or the error of reading them; then only plugins are checked.
        deadline_s: Time limit of all probes together, in seconds; they run in parallel.
    """
    first = [Check(name="finqa", status="ok", detail=_versions())]
    if isinstance(loaded, ConfigError):
        broken = Check(name="settings", status="fail", detail=loaded.message, remedy=loaded.remedy)
        return (*first, broken, *collect([Probe("plugins", plugins)], deadline_s))
    settings = loaded.settings
    probes = [
        Probe("settings", lambda: [settings_check(loaded)]),
        Probe("plugins", plugins),
        Probe("backends", lambda: backends(settings)),
        Probe("model", lambda: model(settings)),
        Probe("placement", lambda: [plan_report(settings, loaded.undecided, visible_devices()).check]),
        Probe("snapshot", lambda: snapshot(settings)),
        *(Probe(name, lambda look=look: look(settings)) for name, look in CHECKS.items()),  # type: ignore[misc]
        Probe("strays", lambda: left_behind(settings), vital=False),  # hooks report why a provider cannot be reached
        *hooks(settings),
    ]
    return (*first, *collect(probes, deadline_s))


def collect(probes: Sequence[Probe], deadline_s: float) -> list[Check]:
    """Return the findings of all probes in their order, with secrets masked.

    A vital probe that raises or does not return in time becomes a failed check.
    """
    answers: queue.SimpleQueue[tuple[int, list[Check]]] = queue.SimpleQueue()
    for number, probe in enumerate(probes):
        # daemon threads, because at exit the interpreter would wait for a pool's threads if one of them hangs
        threading.Thread(target=_answer, args=(answers, number, probe), daemon=True).start()
    found: dict[int, list[Check]] = {}
    end = time.monotonic() + deadline_s
    while len(found) < len(probes):
        try:
            number, checks = answers.get(timeout=max(end - time.monotonic(), 0.0))
        except queue.Empty:
            break
        found[number] = checks
    mask = Masker()
    checks = [check for number, probe in enumerate(probes) for check in found.get(number, _late(probe, deadline_s))]
    return [replace(check, detail=mask(check.detail), remedy=mask(check.remedy)) for check in checks]


def plugins() -> list[Check]:
    """Check whether each plugin could be loaded. A broken one is a warning, because the others work."""
    reports = registry().reports
    found = [_broken(report) for report in reports if report.error]
    for report in reports:
        reasons = [f"{kind} {name} is left out: {reason}" for (kind, name), reason in report.left_out.items()]
        found += [
            Check(name="plugins", status="warn", detail=f"{report.shown}: {detail}", remedy="tell the plugin's author")
            for detail in [*reasons, *report.warnings]
        ]
    return found or [Check(name="plugins", status="ok", detail=f"{len(reports)} loaded, none is broken")]


def settings_check(loaded: Loaded) -> Check:
    """Report where the settings come from."""
    origins = [origin for origin in loaded.origins.values() if origin.startswith(("file", ".env", "environ"))]
    places = sorted({re.sub(r":\d+$", "", origin) for origin in origins})  # a file once, not each of its lines
    return Check(name="settings", status="ok", detail=", ".join(places) or "defaults")


def backends(settings: Settings) -> list[Check]:
    """Check that each chosen component exists, that its packages are installed, and that it accepts its options."""
    choices = {"environment": settings.environment, "engine": settings.engine, "sandbox": settings.sandbox}
    if settings.reward.name != ENVIRONMENT:
        choices["reward"] = settings.reward
    if not modelless(settings):
        choices |= {"codec": settings.codec, "learner": settings.learner, "optimizer": settings.optimizer}
    wrong: list[Check] = []
    for kind, choice in choices.items():
        try:
            component = registry().find(kind, choice.name)
            if missing := missing_requirements(component):
                wrong.append(_missing(component, missing))
            else:
                registry().config(component, choice.options)
        except ConfigError as error:
            wrong.append(Check(name=kind, status="fail", detail=error.message, remedy=error.remedy))
    names = ", ".join(f"{kind} {choice.name}" for kind, choice in choices.items())
    return wrong or [Check(name="backends", status="ok", detail=names)]


def model(settings: Settings) -> list[Check]:
    """Check whether the policy exists, and whether engine and learner support it, by the configuration on this machine.

    Raises:
        FinqaError: There is no such policy, it does not fit the environment, or the engine does not serve it.
    """
    if modelless(settings):
        return []
    policy = resolve(settings.model.name)
    check_fit(settings, policy, trains=False)
    # embedded policies are always supported, and the configuration of a model of the hub is not fetched for a check
    unsure = Path(local_model(policy.model)).is_dir() and not is_embedded(settings.model.name)
    if unsure:
        asyncio.run(_check_served(settings, policy))
    try:
        check_fit(settings, policy, trains=True)
        if unsure:
            _check_trained(settings, policy)
    except ConfigError as error:
        return [Check(name="model", status="warn", detail=f"for training: {error.message}", remedy=error.remedy)]
    size = model_size(settings)
    detail = settings.model.name if size is None else f"{settings.model.name}, {count(size)} parameters"
    return [Check(name="model", status="ok", detail=detail)]


async def _check_served(settings: Settings, policy: PolicyVersion) -> None:
    engine = make_engine(settings, policy)
    try:
        engine.check()
    finally:
        await engine.close()


def _check_trained(settings: Settings, policy: PolicyVersion) -> None:
    learner = make_learner(settings, policy.model)
    try:
        learner.check()
    finally:
        learner.close()


def snapshot(settings: Settings) -> list[Check]:
    """Check whether the data is on this machine; each file of a snapshot is checked against its sha256.

    Raises:
        DataError: The snapshot does not exist or is damaged.
    """
    name, path = settings.data.snapshot, settings.data.path
    if registry().find("environment", settings.environment.name).snapshotless:
        if path is None or path.exists():
            return [Check(name="data", status="ok", detail=str(path or "the environment's own tasks"))]
        return [Check(name="data", status="fail", detail=f"There is no {path}.", remedy="pass an existing path")]
    store = LocalSnapshots(settings.data.home)
    if name == DEFAULT_NAME and not store.versions(name):
        return [Check(name="snapshot", status="ok", detail=f"{name} is not built yet; the first run builds it")]
    found = store.get(name)
    return [Check(name="snapshot", status="ok", detail=f"{name}, {found.digest[:19]}")]


def left_behind(settings: Settings) -> list[Check]:
    """Check for sandboxes whose owner was a process of this machine that no longer exists.

    Raises:
        Exception: The provider cannot be reached: no key, no network.
    """
    left = strays(asyncio.run(_list_sandboxes(settings)))
    if not left:
        return [Check(name="strays", status="ok", detail="no sandboxes of ended runs are left")]
    what = "sandbox of an ended run is" if len(left) == 1 else "sandboxes of ended runs are"
    detail = f"{len(left)} {what} left"
    return [Check(name="strays", status="warn", detail=detail, remedy=reap_command(settings.sandbox.name))]


def hooks(settings: Settings) -> Iterator[Probe]:
    """Yield one probe for each plugin with checks, so that one that raises or hangs does not affect the others."""
    given = to_public_dict(settings)
    with contextlib.suppress(FinqaError):  # the snapshot may not be built yet; the hooks then get no digest
        given["data"]["digest"] = LocalSnapshots(settings.data.home).get(settings.data.snapshot).digest
    lock, executes = threading.Lock(), functools.cache(lambda: _executes(settings))

    def look(plugin: str, caller: HookCaller) -> list[Check]:
        with lock:  # the first hook reads the environment's data, the others wait for the cached result
            facts = {**given, "environment": {**given["environment"], "executes": executes()}}
        try:
            return [check for found in caller(settings=facts) for check in found]
        except FinqaError:
            raise
        except Exception as error:
            failure = registry().describe_failure(plugin, "doctor_checks", error)
            raise PluginError(f"The check failed with an error: it {failure}", remedy=_author(plugin)) from error

    for name, caller in registry().each("doctor_checks"):
        yield Probe(name, functools.partial(look, name, caller))


def _executes(settings: Settings) -> bool:
    """Return whether the environment executes code in its sandboxes, as far as that is known without building data."""
    with contextlib.suppress(FinqaError):  # other checks report what is wrong with the environment
        if registry().find("environment", settings.environment.name).snapshotless:
            return isinstance(open_environment(settings, NullReporter()).sandbox_spec(), ExecutionSpec)
    return False


async def _list_sandboxes(settings: Settings) -> Sequence[SandboxInfo]:
    provider = make_provider(settings)
    try:
        return await provider.list({HOST_LABEL: host_name()})
    finally:
        await provider.close()


def _answer(answers: queue.SimpleQueue[tuple[int, list[Check]]], number: int, probe: Probe) -> None:
    try:
        checks = list(probe.look())
        if strange := [check for check in checks if not isinstance(check, Check) or check.status not in STATUSES]:
            raise TypeError(f"{strange[0]!r} is not a Check")
    except BaseException as error:  # a plugin's hook may raise anything, and no one would see it in this thread
        checks = _raised(probe, error)
    answers.put((number, checks))


def _raised(probe: Probe, error: BaseException) -> list[Check]:
    if not probe.vital:
        return []
    if isinstance(error, FinqaError):
        return [Check(name=probe.name, status="fail", detail=error.message, remedy=error.remedy)]
    detail = f"The check failed with an error: {type(error).__name__}: {error}"
    return [Check(name=probe.name, status="fail", detail=detail, remedy=_author(probe.name))]


def _author(plugin: str) -> str:
    return f"report it to the author of {plugin!r}; finqa plugins lists where it comes from"


def _late(probe: Probe, seconds: float) -> list[Check]:
    detail, remedy = f"no response within {seconds:g} s", "check the network, then run the same command again"
    return [Check(name=probe.name, status="fail", detail=detail, remedy=remedy)] if probe.vital else []


def _broken(report: PluginReport) -> Check:
    source = report.distribution
    return Check(
        name="plugins",
        status="warn",
        detail=f"{report.name} ({report.module}) cannot be loaded: {report.error}",
        remedy=f"pip install --upgrade {source}" if source else f"correct {report.module}, or tell the plugin's author",
    )


def _missing(component: Component, missing: Sequence[str]) -> Check:
    return Check(
        name=component.kind,
        status="fail",
        detail=f"{component.name} needs {', '.join(missing)}, which is not installed",
        remedy=f"pip install 'finqa[{component.extra}]'" if component.extra else f"pip install {missing[0]}",
    )


def _versions() -> str:
    return f"{__version__} on Python {platform.python_version()}, {platform.system()} {platform.machine()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """Result of the checks of a cluster.

    Attributes:
        checks: The findings, those about all nodes first.
        nodes: Replies of the nodes; empty if they cannot be reached.
    """

    checks: tuple[Check, ...]
    nodes: Sequence[NodeFacts] = field(default_factory=tuple)

    @property
    def placed(self) -> list[NodeFacts]:
        """The nodes that engines and learners can be placed on."""
        return [node for node in self.nodes if not (node.controller or node.left or node.problem)]

    @property
    def document(self) -> list[Mapping[str, Any]]:
        """The facts as JSON values, the controller first."""
        return [asdict(node) for node in self.nodes]


def cluster_report(settings: Settings) -> ClusterReport:
    """Check the nodes of `cluster.address`. This takes some seconds, because a process starts on each node."""
    try:
        facts = survey(settings)
        found = judge_nodes(facts, node_needs(settings))
    except FinqaError as error:
        check = Check(name="cluster", status="fail", detail=error.message, remedy=error.remedy)
        return ClusterReport(checks=(check,))
    if not on_nodes(settings):
        found.insert(
            0,
            Check(
                name="cluster",
                status="warn",
                detail=f"neither engine {settings.engine.name} nor learner {settings.learner.name} runs on nodes",
                remedy=f"--engine {name_on_cluster('engine', 'vllm')} "
                f"--set learner.name={name_on_cluster('learner', settings.learner.name)}",
            ),
        )
    return ClusterReport(checks=tuple(found), nodes=facts)


def node_needs(settings: Settings) -> NodeNeeds:
    """Return what a run with these settings needs on nodes.

    Raises:
        FinqaError: There is no such policy.
    """
    address, model = settings.cluster.address, base_model(settings)
    return NodeNeeds(
        address=address if ":" in address else "HOST:PORT",
        model=model,
        folder=Path(model).is_dir(),
        ships=is_embedded(settings.model.name),
    )
