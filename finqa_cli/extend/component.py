"""What a plugin registers: strings only, so that registering imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["sandbox", "environment", "engine", "codec", "call_format", "optimizer", "learner", "tracker", "reward"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class VenvSpec:
    """A virtual environment that `finqa setup NAME` makes, for packages whose pins do not fit beside ours.

    Attributes:
        requirements: `package:file` of the pins: a requirements file that ships with the plugin.
        pythons: First and last version of Python that the pins are for, such as `("3.11", "3.14")`.
        gigabytes: Disk space that the environment and its downloads take.
        check: `package.module:function` that proves that it works. Called as `check(python, folder, say, start)`: the
            interpreter, a folder for logs, a function that shows a line, and whether to start servers. Returns the
            versions of the distributions that it looked at; raises a FinqaError when something does not work.
    """

    requirements: str
    pythons: tuple[str, str]
    gigabytes: float
    check: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One thing that settings can choose by name.

    Attributes:
        kind: Which contract it fulfils.
        name: What `--engine NAME` and friends take.
        target: `package.module:Class`, or a function that makes one, imported when the component is used. Called as
            `Class(config, context)`; an optimizer, a reward or a call format as `Class(config)`.
        config: `package.module:Class` of its options: a pydantic model with `extra="forbid"`. Empty: it has none.
        summary: One line for `finqa plugins`.
        requires: Import names that must be installed to use it.
        extra: The extra of `finqa` that installs them; the remedy of the error when they are missing.
        readiness: `package.module:function` that says what it lacks on this machine besides `requires`, for `finqa
            plugins`. Called with the mapping of `doctor_checks`, returns `Check`s: with a `fail` it cannot be used,
            with a `warn` in part. Imports nothing heavy and opens no connection. Empty: it lacks nothing.
        venv: An environment of its own that `finqa setup NAME` makes; None: it needs none.
        modelless: For an engine: it answers from a mind of its own (an expert, a person) and takes no model.
        remote: For an engine: a server elsewhere runs the model, so its name is taken as it is and needs nothing here.
        devices: For an engine or a learner: CUDA devices of one replica or learner: `none`, `one`, or `several`, over
            which its weights can be spread. A property `device_use` of its options, if they have one, wins.
        sleeps: For an engine: it can free its devices for the time of an update (`TokenEngine.sleeps`).
        overhead_gib: For an engine: what compiled graphs and workspaces take of each device, beside the model.
        snapshotless: For an environment: its tasks come from files (`--data`) or from itself, not from a snapshot.
        policy: For an environment: the small policy that plays it where no model is named and there is no GPU, such as
            `embedded-code`; a plugin resolves the name. Empty: `embedded`.
        clustered_by: For an environment: what `Task.cluster` names, a noun in the singular such as `company`, or
            `{option}` for the value of one of its options; reports say it. Empty: it is not known.
        standing: For a tracker: every run has it without its being named, where its packages are installed.
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
    snapshotless: bool = False
    policy: str = ""
    clustered_by: str = ""
    standing: bool = False
