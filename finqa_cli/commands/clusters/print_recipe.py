"""`finqa launch`: a recipe that starts a training run on the machines of a cluster."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit
from finqa_cli.errors import UsageError
from finqa_cli.launching.cluster_shape import KINDS, MOST_NODES, Shape, check_options, read_gpus, split_devices
from finqa_cli.launching.recipe import Recipe, render
from finqa_cli.launching.train_words import train_words
from finqa_cli.settings.offered import OF_TRAIN

app = CommandApp()


def _machines(*flags: str, help: str, **details: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel="Machines", **details)


Print = Annotated[
    str, _machines("--print", metavar="KIND", help=f"Kind of recipe: {', '.join(KINDS)}.", show_default=False)
]
Name = Annotated[str, _machines("--name", help="Name of the job or cluster.")]
Nodes = Annotated[
    int | None,
    _machines("--nodes", help="Number of nodes.", min=1, max=MOST_NODES, show_default="2, or one per --host"),
]
Gpus = Annotated[
    str, _machines("--gpus-per-node", metavar="[TYPE:]N", help="GPUs of a node, such as 8 or H100:8; 0: none.")
]
Cpus = Annotated[int, _machines("--cpus-per-node", help="CPUs of a node.", min=1, max=4096)]
Memory = Annotated[
    int,
    _machines(
        "--memory-per-node", metavar="GIB", help="Memory of a node, in GiB.", min=0, show_default="the cluster's"
    ),
]
Hours = Annotated[
    float, _machines("--hours", help="Time limit; slurm and kuberay.", min=0.0, max=10_000.0, show_default="none")
]
Image = Annotated[str, _machines("--image", help="Container image with finqa and Ray; kuberay and skypilot.")]
Volume = Annotated[str, _machines("--volume", help="Volume that keeps the run folder; kuberay and skypilot.")]
Hosts = Annotated[
    list[str] | None, _machines("--host", help="Address of a machine for ray, the head first; repeatable.")
]
User = Annotated[str, _machines("--user", help="User who logs in on the hosts; ray.")]
Variables = Annotated[
    list[str] | None,
    _machines(
        "--variable",
        metavar="NAME",
        help="Name of an environment variable that the nodes need, such as DAYTONA_API_KEY; repeatable. Values are "
        "never printed.",
    ),
]

_EXAMPLE = (
    "Example: finqa launch --print slurm --nodes 2 --gpus-per-node 8 --hours 24 --model Qwen/Qwen3-4B > train.sbatch."
)


@app.command(epilog=f"{_EXAMPLE} {EXIT_CODES}")
@offers(*OF_TRAIN, general=("config", "assign", "as_json"))
def main(
    line: CommandLine,
    kind: Print = "",
    name: Name = "finqa",
    nodes: Nodes = None,
    gpus_per_node: Gpus = "1",
    cpus_per_node: Cpus = 8,
    memory_per_node: Memory = 0,
    hours: Hours = 0.0,
    image: Image = "",
    volume: Volume = "",
    host: Hosts = None,
    user: User = "",
    variable: Variables = None,
) -> None:
    """Print a recipe that starts `finqa train` with these settings on a Ray cluster; nothing is started.

    Recipes are for SLURM (sbatch), KubeRay (a RayJob), SkyPilot (a task) and Ray's cluster launcher (`ray up`). Files,
    variables and flags become part of the recipe; secrets do not. Engine and learner run on the nodes as `ray:NAME`.
    """
    if kind not in KINDS:
        what = f"There is no recipe {kind!r}." if kind else "Nothing is started; the command prints a recipe."
        raise UsageError(what, remedy=f"--print with one of: {', '.join(KINDS)}")
    hosts = tuple(host or ())
    if hosts and nodes is not None:
        raise UsageError("--host names every node, so --nodes would have no effect.", remedy="leave --nodes out")
    gpus, gpu_type = read_gpus(gpus_per_node)
    loaded = line.load(quiet=True, assume_cuda=gpus > 0)
    shape = Shape(
        name=name,
        nodes=len(hosts) or nodes or 2,
        gpus=gpus,
        gpu_type=gpu_type,
        cpus=cpus_per_node,
        memory_gib=memory_per_node,
        hours=hours,
        image=image,
        volume=volume,
        hosts=hosts,
        user=user,
        variables=tuple(variable or ()),
        run_dir=str(loaded.settings.run.dir or ""),
    )
    check_options(shape, kind)
    split = split_devices(shape, loaded.settings, loaded.undecided)
    recipe = Recipe(kind=kind, shape=shape, train=train_words(loaded, split.replicas, split.processes))
    text = render(recipe)
    if not line.as_json and sys.stdout.isatty():
        line.note(f"A recipe of {kind}, for a file: add > FILE")
    document = {
        "kind": kind,
        "recipe": text,
        "run": recipe.run,
        "variables": list(recipe.variables),
        "engine_replicas": split.replicas,
        "learner_processes": split.processes,
    }
    emit(document, as_json=line.as_json, text=text.removesuffix("\n"))
