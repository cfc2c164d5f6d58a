"""The machines of a recipe, and the numbers of engine replicas and learner processes that run on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.settings import Settings

KINDS = ("slurm", "kuberay", "skypilot", "ray")

MOST_NODES = 10_000

SIGNAL_SECONDS = 300
"""Time before the time limit, in seconds, at which a SLURM job is stopped and queued again."""

_HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The machines that a recipe asks for. Each node has the same GPUs and CPUs; the head is one of them.

    Attributes:
        name: Name of the job or cluster: a DNS label.
        nodes: Number of nodes.
        gpus: GPUs of a node.
        gpu_type: Type of the GPUs in the scheduler's own words, such as `H100`; empty: any.
        cpus: CPUs of a node.
        memory_gib: Memory of a node in GiB; 0: the scheduler's default.
        hours: Time limit in hours; 0: none.
        image: Container image with finqa and Ray; empty: none.
        volume: Name of a volume that keeps the run folder; empty: none.
        hosts: Addresses of the machines, the head first, for schedulers that do not choose them.
        user: User who logs in on the hosts.
        variables: Names of environment variables that the nodes need; their values are never part of a recipe.
        run_dir: Run folder on the cluster; empty: a folder named after the job.
    """

    name: str = "finqa"
    nodes: int = 2
    gpus: int = 1
    gpu_type: str = ""
    cpus: int = 8
    memory_gib: int = 0
    hours: float = 0.0
    image: str = ""
    volume: str = ""
    hosts: tuple[str, ...] = ()
    user: str = ""
    variables: tuple[str, ...] = ()
    run_dir: str = ""

    def __post_init__(self) -> None:
        """Check the form of every text.

        Raises:
            UsageError: A text is not a name that all schedulers accept.
        """
        _check("--name", self.name, r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", "up to 40 small letters, digits and -")
        _check("--gpus-per-node", self.gpu_type, r"([A-Za-z0-9][\w.-]{0,39})?", "COUNT or TYPE:COUNT")
        _check("--image", self.image, r"([A-Za-z0-9][\w.:/@+-]{0,254})?", "the name of an image")
        _check("--volume", self.volume, r"([a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?)?", "the name of a volume")
        _check("--user", self.user, r"([a-z_][\w.-]{0,31})?", "the name of a user")
        if not self.run_dir.isprintable():
            raise UsageError(f"--run-dir must be a path of printable characters, not {self.run_dir!r}.")
        for host in self.hosts:
            _check("--host", host, _HOST, "a host name or an address")
        for variable in self.variables:
            _check("--variable", variable, r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable, without a value")


def _check(option: str, text: str, pattern: str, what: str) -> None:
    if not re.fullmatch(pattern, text, re.ASCII):
        shown = "" if option == "--variable" else f", not {text!r}"
        raise UsageError(f"{option} must be {what}{shown}.")


def read_gpus(text: str) -> tuple[int, str]:
    """Return number and type of GPUs, from a text such as `8` or `H100:8`.

    Raises:
        UsageError: The text has another form.
    """
    kind, _, count = text.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,3}", count, re.ASCII) or (text.startswith(":")):
        raise UsageError(f"--gpus-per-node must be COUNT or TYPE:COUNT, not {text!r}.")
    return int(count), kind


_TYPED_GPUS = "--gpus-per-node TYPE:COUNT"

Reader = Callable[[Shape], object]

_OPTIONS: Mapping[str, tuple[Reader, frozenset[str], frozenset[str]]] = MappingProxyType(
    {
        _TYPED_GPUS: (
            lambda shape: shape.gpu_type,
            frozenset({"slurm", "skypilot"}),
            frozenset({"skypilot"}),
        ),
        "--memory-per-node GIB": (
            lambda shape: shape.memory_gib,
            frozenset({"slurm", "kuberay", "skypilot"}),
            frozenset(),
        ),
        "--hours H": (lambda shape: shape.hours, frozenset({"slurm", "kuberay"}), frozenset({"slurm"})),
        "--image IMAGE": (
            lambda shape: shape.image,
            frozenset({"kuberay", "skypilot"}),
            frozenset({"kuberay", "skypilot"}),
        ),
        "--volume NAME": (lambda shape: shape.volume, frozenset({"kuberay", "skypilot"}), frozenset({"kuberay"})),
        "--host HOST": (lambda shape: shape.hosts, frozenset({"ray"}), frozenset({"ray"})),
        "--user USER": (lambda shape: shape.user, frozenset({"ray"}), frozenset({"ray"})),
    }
)
"""Option -> function that returns its value, kinds of recipe that use the option, and kinds that need it."""


def check_options(shape: Shape, kind: str) -> None:
    """Check that a recipe gets the options that it needs, and no others.

    Raises:
        UsageError: An option is missing or would have no effect, or the time limit is too short.
    """
    if 0 < 3600 * shape.hours < 2 * SIGNAL_SECONDS:
        raise UsageError(f"--hours must be at least {2 * SIGNAL_SECONDS / 3600:.2g}, not {shape.hours:g}.")
    for option, (read, takers, needing) in _OPTIONS.items():
        given = bool(read(shape))
        needed = kind in needing and not (option == _TYPED_GPUS and shape.gpus == 0)
        if given and kind not in takers:
            raise UsageError(
                f"{option} would have no effect on a recipe of {kind}.", remedy=f"leave {option.split()[0]} out"
            )
        if needed and not given:
            raise UsageError(f"A recipe of {kind} needs {option}.", remedy=f"{option}, with a value for your cluster")


@dataclass(frozen=True, slots=True)
class Split:
    """Numbers of engine replicas and of learner processes that run on the nodes."""

    replicas: int
    processes: int


def split_devices(shape: Shape, settings: Settings, undecided: frozenset[str]) -> Split:
    """Return the replicas and learner processes: those of the settings, or one process and replicas on all other GPUs.

    A replica uses `model.tensor_parallel_size` GPUs, a process one. Without GPUs, each of them uses a CPU.

    Raises:
        ConfigError: The nodes have too few GPUs or CPUs.
    """
    devices = settings.model.tensor_parallel_size
    replicas = settings.generation.engine_replicas
    processes = settings.train.learner_processes
    total = shape.nodes * shape.gpus
    if total:
        if "train.learner_processes" in undecided:
            processes = 1
        if "generation.engine_replicas" in undecided:
            replicas = max(1, (total - processes) // devices)
    what, have, each = ("GPU", total, devices) if total else ("CPU", shape.nodes * shape.cpus, 1)
    if (need := replicas * each + processes) > have:
        raise ConfigError(
            f"{replicas} engine replicas of {each} {what} and {processes} learner processes need {need} {what}s, "
            f"and {shape.nodes} nodes have {have}.",
            remedy=f"--nodes {shape.nodes * -(-need // have) if have else need}",
        )
    return Split(replicas, processes)
