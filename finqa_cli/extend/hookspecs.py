"""The whole extension contract: the components that a plugin registers, and the hooks that it may implement.

A plugin is a module in the entry-point group `finqa` with functions marked `@hookimpl`. See plugins/README.md. Plugins
register components by strings, so that registration imports nothing heavy. A hook with `firstresult=True` returns None
to leave the answer to other plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import pluggy

from finqa_cli.contracts import AccountQuota, LearnerProcesses
from finqa_cli.local_models import GgufFile
from finqa_cli.types import Architecture, Check, Group, NodeFacts, NodeNeeds, PolicyVersion, Trajectory, UpdateReport

GROUP = "finqa"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)

Kind = Literal["sandbox", "environment", "engine", "codec", "call_format", "optimizer", "learner", "tracker", "reward"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class VenvSpec:
    """A virtual environment that `finqa setup NAME` creates, for packages that are incompatible with those of finqa.

    Attributes:
        requirements: `package:file` of the pins: a requirements file that ships with the plugin.
        pythons: First and last version of Python that the pins are for, such as `("3.11", "3.14")`.
        gigabytes: Disk space of the environment and its downloads, in GB.
        check: `package.module:function` that checks that it works. Called as `check(python, folder, say, start)`: the
            interpreter, a folder for logs, a function that shows a line, and whether to start servers. Returns the
            versions of the distributions that it checked; raises a FinqaError if something does not work.
    """

    requirements: str
    pythons: tuple[str, str]
    gigabytes: float
    check: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A component that settings select by name.

    Attributes:
        kind: Kind of the component, which defines its contract.
        name: Name for `--engine NAME` and similar options.
        target: `package.module:Class`, or a function that makes one, imported when the component is used. Called as
            `Class(config, context)`; an optimizer, a reward or a call format as `Class(config)`.
        config: `package.module:Class` of its options: a pydantic model with `extra="forbid"`. Empty: it has none.
        summary: One line for `finqa plugins`.
        requires: Import names that must be installed to use it.
        extra: The extra of `finqa` that installs them; the remedy of the error when they are missing.
        readiness: `package.module:function` that reports what it lacks on this machine besides `requires`. Empty: it
            lacks nothing. Called as `readiness(settings)` if all of `requires` are installed: by `finqa plugins` for
            every component, by `finqa plugins show NAME` for those that it shows, and by `finqa doctor --cluster` on
            each node for the engine and the learner that run on nodes. Other commands do not call it. `settings` are
            all settings as JSON values with secrets masked, or the defaults if a settings file is wrong; they may name
            another component of the kind, with its options. Returns `Check`s: with a `fail` the component cannot be
            used, with a `warn` only in part; each `ok` is ignored. An exception counts as a `fail` that contains its
            text, and the command continues. The call has no time limit, so the function imports nothing heavy, calls
            no remote service, and returns within seconds.
        venv: An environment of its own that `finqa setup NAME` makes; None: it needs none.
        modelless: For an engine: it uses no model (an expert, a person).
        remote: For an engine: a remote server runs the model, so its name is used unchanged and needs no local files.
        devices: For an engine or a learner: CUDA devices of one replica or learner: `none`, `one`, or `several`, over
            which its weights can be spread. A property `device_use` of its options has priority.
        sleeps: For an engine: it can free its devices during updates (`TokenEngine.sleeps`). For a learner: in one
            process, its frozen weights leave the device while an engine uses it (`Learner.sleep`).
        overhead_gib: For an engine: GiB of compiled graphs and workspaces on each device, in addition to the model.
        threads: For an engine or a learner that can compute on the CPU: its option for the number of threads. If it is
            not set, the placement sets it to the component's share of the free cores. Empty: it has none.
        elsewhere: For an engine or a learner: it runs on other machines; no device of this one is planned for it.
        snapshotless: For an environment: its tasks come from files (`--data`) or from itself, not from a snapshot.
        sandboxless: For an environment: its episodes need no sandbox.
        policy: For an environment: the small policy that is used if no model is named and there is no GPU, such as
            `embedded-code`; a plugin resolves the name. Empty: `embedded`.
        given: Values of options that the user cannot set, such as the file that the component was found in.
        verdict: For an environment: `package.module:Class` of a `Reward` that judges a reply as the environment does,
            for `finqa rewards show|test|score environment`. Empty: its verdict cannot stand alone.
        clustered_by: For an environment: what `Task.cluster` names, a noun in the singular such as `company`, or
            `{option}` for the value of one of its options; reports show it. Empty: it is not known.
        learning_rates: For an optimizer: its default learning rates, for an adapter and for all weights. None: those of
            `train.learning_rate`.
        standing: For a tracker: every run uses it automatically if its packages are installed.
    """

    kind: Kind
    name: str
    target: str
    config: str = ""
    summary: str = ""
    requires: tuple[str, ...] = ()
    extra: str = ""
    readiness: str = ""
    venv: VenvSpec | None = None
    modelless: bool = False
    remote: bool = False
    devices: Literal["none", "one", "several"] = "one"
    sleeps: bool = False
    overhead_gib: float = 0.0
    threads: str = ""
    elsewhere: bool = False
    snapshotless: bool = False
    sandboxless: bool = False
    policy: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    verdict: str = ""
    clustered_by: str = ""
    learning_rates: tuple[float, float] | None = None
    standing: bool = False


@hookspec
def register_components() -> Sequence[Component]:  # type: ignore[empty-body]
    """Return the components that this plugin offers."""


@hookspec(firstresult=True)
def find_component(kind: str, name: str) -> Component | None:
    """Return the component for a name that is not registered, such as the path of a file; None if it is not yours."""


@hookspec
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:  # type: ignore[empty-body]
    """Return checks of your services and packages for `finqa doctor`, with these settings (secrets masked).

    `settings["data"]["digest"]` is the digest of the snapshot on this machine, if there is one.
    `settings["environment"]["executes"]` shows whether sandboxes of the environment execute code, as far as that is
    known without building data.

    Called in a separate thread with a limit of a few seconds; an exception becomes a failed check.
    """


@hookspec(firstresult=True)
def survey_nodes(
    address: str, model: str, components: Sequence[tuple[str, str]], settings: Mapping[str, Any], brief: bool
) -> list[NodeFacts] | None:
    """Return facts of each node of the cluster at `cluster.address`, the controller's process first.

    None when the cluster is not yours. `components` are kind and name of the components that will run on nodes, by the
    names of `name_on_cluster`. `model` is the folder or hub id of their base model, and `settings` are all settings
    as JSON values with secrets masked. With `brief`, return only addresses and sizes, and be quick.
    """


@hookspec(firstresult=True)
def judge_nodes(facts: Sequence[NodeFacts], needs: NodeNeeds) -> list[Check] | None:
    """Return checks for `finqa doctor --cluster` from the facts of `survey_nodes`; None when the cluster is not yours.

    The checks about all nodes come first, then those about each node; a node without problems has one passed check.
    """


@hookspec(firstresult=True)
def name_on_cluster(kind: str, name: str) -> str | None:
    """Return the name under which an engine or learner runs on the nodes of your cluster; None if you have no cluster.

    `find_component` finds the component of this name.
    """


@hookspec
def on_run_start(run_id: str, settings: Mapping[str, Any]) -> None:
    """A run begins; `settings` are resolved and free of secrets."""


@hookspec
def on_run_end(run_id: str, status: str) -> None:
    """A run ends with `completed`, `interrupted` or `failed`."""


@hookspec
def on_trajectory(trajectory: Trajectory) -> None:
    """An attempt ended, graded or not."""


@hookspec
def on_group(group: Group) -> None:
    """All members of a group ended."""


@hookspec
def on_update(iteration: int, report: UpdateReport) -> None:
    """The learner took a step."""


@hookspec
def on_weights(policy: PolicyVersion) -> None:
    """The engine serves this version from now on."""


@hookspec
def on_eval(iteration: int, metrics: Mapping[str, Any]) -> None:
    """An evaluation during or after a run ended."""


@hookspec(firstresult=True)
def resolve_policy(reference: str) -> PolicyVersion | None:
    """Resolve a reference from the command line to a policy; None when it is not yours."""


@hookspec(firstresult=True)
def create_policy(specification: Path, texts: Sequence[str], folder: Path, seed: int) -> PolicyVersion | None:
    """Create an untrained model, and a tokenizer trained on `texts`, in `folder`; None when the file is not yours."""


@hookspec(firstresult=True)
def merge_policy(policy: PolicyVersion, folder: Path) -> PolicyVersion | None:
    """Merge a policy's adapter into its base, and write the whole model into `folder`.

    The folder must be complete or absent afterwards. None when the adapter is not yours.
    """


@hookspec(firstresult=True)
def write_model(policy: PolicyVersion, folder: Path, dtype: str) -> PolicyVersion | None:
    """Write a policy as one whole model into `folder`, with an adapter merged into its base.

    The folder must be complete or absent afterwards. `dtype` is `float32`, `bfloat16` or `float16`; the policy's model
    may be a folder of shards. None when it is not yours.
    """


@hookspec(firstresult=True)
def convert_gguf(header: GgufFile, folder: Path, dtype: str, moved: Callable[[str, int, int], None]) -> bool | None:
    """Convert the GGUF file at `header.path` into a model folder of transformers, with its tokenizer.

    `folder` exists and is empty; the caller publishes it when this hook returns True. `dtype` is `float32` or
    `bfloat16`. Call `moved` with the name of each step, how much of it is done, and how much there is in all (0: it is
    not known). None when the file is not yours.
    """


@hookspec(firstresult=True)
def join_processes(learner: str) -> LearnerProcesses | None:
    """Join the processes that `torchrun` started, for learners of this name; None when the learner is not yours.

    Called once in each of these processes, before anything else of the command.
    """


@hookspec(firstresult=True)
def share_quota(account: str, limit: int, window_s: float, cluster: str) -> AccountQuota | None:
    """Return the quota of an account over all processes of a cluster; None when the cluster is not yours.

    `account` is a digest. The quota allows at most `limit` creates in any `window_s` seconds. Must not connect yet.
    """


@hookspec(firstresult=True)
def make_players(request: Any) -> Any:
    """Return the `finqa_cli.rollout.players.Players` of a run with `cluster.rollout_workers`; None if it is not yours.

    `request` is a `finqa_cli.rollout.players.PlayersRequest`. Nothing is started or connected to yet.
    """


@hookspec(firstresult=True)
def contract_suite(kind: str) -> str | None:
    """Return the module with the pytest tests of a kind's contract, for `finqa plugins check`; None if you have none.

    `kind` is a kind of component, or `chat_engine`. The tests take the fixtures that `finqa plugins check` makes.
    """


@hookspec(firstresult=True)
def inspect_model(reference: str) -> Architecture | None:
    """Read the structure of a model folder or hub id, without its weights; None if it is not yours."""


@hookspec(firstresult=True)
def explain_error(error: BaseException) -> str | None:
    """Return one line with the remedy for an exception of your library; None when it is not yours."""
