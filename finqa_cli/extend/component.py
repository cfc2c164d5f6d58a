"""What a plugin registers: strings only, so that registering imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["sandbox", "environment", "engine", "codec", "call_format", "optimizer", "learner", "tracker", "reward"]
KINDS: tuple[str, ...] = get_args(Kind)


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
        modelless: For an engine: it answers from a mind of its own (an expert, a person) and takes no model.
        remote: For an engine: a server elsewhere runs the model, so its name is taken as it is and needs nothing here.
        devices: For an engine or a learner: CUDA devices of one replica or learner: `none`, `one`, or `several`, over
            which its weights can be spread. A property `device_use` of its options, if they have one, wins.
        sleeps: For an engine: it can free its devices for the time of an update (`Sleeper`).
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
    modelless: bool = False
    remote: bool = False
    devices: Literal["none", "one", "several"] = "one"
    sleeps: bool = False
    overhead_gib: float = 0.0
    snapshotless: bool = False
    policy: str = ""
    clustered_by: str = ""
    standing: bool = False
