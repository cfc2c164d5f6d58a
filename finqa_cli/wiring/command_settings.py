"""The settings of a workflow: resolved from all layers and placed on this machine, or read from a run to resume.

The command line and the Python interface use this module.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from finqa_cli.data.dataset import default_grader
from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.extend import missing_requirements, registry
from finqa_cli.grading import versioned
from finqa_cli.runs.links import located
from finqa_cli.runs.mirror_store import MirrorStore
from finqa_cli.runs.run_folder import MANIFEST, is_over, new_run_path, read_run, read_settings
from finqa_cli.settings import AUTO, Choice, Loaded, Settings, from_public_dict, load_settings
from finqa_cli.settings.schema import ClusterSettings, PoolSettings
from finqa_cli.wiring.placing import Purpose, place, place_again
from finqa_cli.wiring.policies import settings_of

RESUMABLE = ("train", "sft", "dpo", "sample", "eval", "pipeline")
"""Commands that can resume a run."""

FEW_EPISODES, QUESTIONS_PER_EPISODE, LEAST_QUESTIONS = 64, 2, 16
"""Training runs of fewer episodes evaluate on so many held-out questions for each of them, and at least on the last."""

_LONGEST_WORD = 30

RUNS = Path("runs")
"""Folder for runs without `--run-dir`."""


def run_path(settings: Settings, prefix: str = "") -> Path:
    """Return the run folder of the settings, or the path of a new one below ./runs."""
    return settings.run.dir or new_run_path(RUNS, prefix)


def played_prefix(command: str, target: str, settings: Settings) -> str:
    """Return the first part of the name of a run that plays: command, policy, data; `eval_gpt-4o_openenv-finqa_`."""
    data = settings.data
    source = data.path.name if data.path is not None else data.snapshot if settings.environment.name == "finqa" else ""
    words = (target.rstrip("/").rpartition("/")[2], source or settings.environment.name)
    named = [re.sub(r"[^\w.-]+", "-", word).strip("-.")[:_LONGEST_WORD] for word in words]
    return "_".join([command, *(word for word in named if word)]) + "_"


def read_layers(
    *,
    flags: Mapping[str, Any],
    typed: Mapping[str, str] = MappingProxyType({}),
    files: Sequence[str | Path] = (),
    assignments: Sequence[str] = (),
    arguments: Sequence[tuple[str, str, Any]] = (),
    assume_cuda: bool = False,
) -> Loaded:
    """Resolve settings, given the registered components; see `load_settings`."""
    return load_settings(
        flags=flags,
        typed=typed,
        files=files,
        assignments=assignments,
        arguments=arguments,
        registered={(component.kind, component.name) for component in registry().components()},
        modelless=[component.name for component in registry().components("engine") if component.modelless],
        policies={part.name: part.policy for part in registry().components("environment") if part.policy},
        rates={part.name: part.learning_rates for part in registry().components("optimizer") if part.learning_rates},
        options_of=_options_of,
        assume_cuda=assume_cuda,
    )


def _options_of(kind: str, name: str) -> type[BaseModel] | None:
    """Return the class of the options of a component; None if it has none or is not usable, which is reported later."""
    try:
        component = registry().find(kind, name)
        return None if missing_requirements(component) else registry().config_class(component)
    except (ConfigError, ImportError):
        return None


def limit_evaluation(loaded: Loaded) -> tuple[Loaded, str]:
    """Limit the evaluations before and after a training run of few episodes, unless a layer sets `eval.limit`.

    A smoke test of 4 episodes would otherwise spend nearly all of its time on hundreds of held-out questions.

    Returns:
        The settings, and a line for the user; empty if nothing was limited.
    """
    train, pool = loaded.settings.train, loaded.settings.pool
    most = train.max_rollout_rounds * max(1, pool.sandboxes * pool.sessions_per_sandbox // train.group_size)
    episodes = train.iterations * min(train.target_groups_per_iter or most, most) * train.group_size
    if loaded.origins["eval.limit"] != "default" or episodes >= FEW_EPISODES:
        return loaded, ""
    limit = max(LEAST_QUESTIONS, QUESTIONS_PER_EPISODE * episodes)
    evaluation = loaded.settings.eval.model_copy(update={"limit": limit})
    note = f"held-out questions: at most {limit}, because at most {episodes} episodes are trained on; all: --limit 0"
    settings = loaded.settings.model_copy(update={"eval": evaluation})
    return replace(loaded, settings=settings, origins={**loaded.origins, "eval.limit": "auto"}), note


def check_snapshot(environment: str, named: str) -> None:
    """Check that a snapshot has an effect in this environment.

    Args:
        environment: Name of the environment.
        named: Name of the flag or keyword that sets the snapshot.

    Raises:
        UsageError: The environment uses no snapshot.
    """
    if registry().find("environment", environment).snapshotless:
        raise UsageError(
            f"Environment {environment!r} has no snapshot, so {named} would have no effect.",
            remedy=f"leave {named} out; --data names a file of tasks",
        )


def check_sandboxes(settings: Settings, confirm: Callable[[int], bool] = lambda count: False) -> None:
    """Ask for confirmation if the number of sandboxes is above `pool.ask_above`.

    Args:
        settings: Resolved settings.
        confirm: Asks the user whether to start this number; by default the answer is no.

    Raises:
        ConfigError: The number is not confirmed.
    """
    asked, most = settings.pool.sandboxes, settings.pool.ask_above
    if asked > most and not confirm(asked):
        raise ConfigError(
            f"{asked:,} sandboxes are more than a run starts without confirmation (pool.ask_above={most:,}).",
            remedy=f"--sandboxes with a smaller number, or --set pool.ask_above={asked}",
        )


def place_settings(loaded: Loaded, purpose: Purpose | None) -> Loaded:
    """Plan the placement of engine and learner, and set the settings that it decides.

    Args:
        loaded: The settings.
        purpose: What the command runs; None: neither engine nor learner, so nothing is planned.

    Raises:
        ConfigError: There is no such environment, an option of it is wrong, or engine or learner does not fit on this
            machine.
    """
    if purpose is None:
        run = loaded.settings.run.model_copy(update={"placed": tuple(sorted(loaded.undecided))})
        return replace(loaded, settings=loaded.settings.model_copy(update={"run": run}))
    chosen = loaded.settings.environment
    if not missing_requirements(environment := registry().find("environment", chosen.name)):
        registry().config(environment, chosen.options)  # what is wrong there is named before a model is looked for
    loaded = with_grader_of_data(_with_codec_of_model(loaded))
    placed = place(loaded.settings, loaded.undecided, purpose)
    return replace(loaded, settings=placed.settings, plan=placed.plan)


def with_grader_of_data(loaded: Loaded) -> Loaded:
    """Return the settings with the grader of the data, unless a layer or the environment's server sets one.

    Without a snapshot it is the default of the environment. Its version is then in the settings of the run, which
    neither a later import nor a later version changes.
    """
    settings = loaded.settings
    chosen = settings.environment
    component = registry().find("environment", chosen.name)
    if "grader" in chosen.options or chosen.options.get("url") or missing_requirements(component):
        return loaded
    options = registry().config_class(component)
    if options is None or "grader" not in options.model_fields:
        return loaded
    if component.snapshotless:
        origin, grader = "default", options.model_fields["grader"].get_default()
    else:
        snapshot = LocalSnapshots(settings.data.home).current(settings.data.snapshot)
        about = snapshot.metadata if snapshot is not None else {}
        origin = f"snapshot {settings.data.snapshot}"
        grader = default_grader(str(about.get("source", "")), str(about.get("grader", "")))
    environment = Choice(name=chosen.name, options={**chosen.options, "grader": versioned(grader)})
    try:
        registry().config(component, environment.options)
    except ConfigError:
        return loaded  # an environment of a plugin has other graders
    origins = {**loaded.origins, "environment.options.grader": origin}
    return replace(loaded, settings=settings.model_copy(update={"environment": environment}), origins=origins)


def _with_codec_of_model(loaded: Loaded) -> Loaded:
    """Return the settings with the codec of the run that made the model, unless a layer sets a codec.

    Raises:
        ConfigError, DataError: The settings of that run are damaged or of another version.
    """
    if any(path.startswith("codec.") and origin != "default" for path, origin in loaded.origins.items()):
        return loaded
    if (stored := settings_of(loaded.settings.model.name)) is None:
        return loaded
    codec = Choice.model_validate(stored["codec"])
    return replace(loaded, settings=loaded.settings.model_copy(update={"codec": codec}))


def fetch_run(run: Path, given: Mapping[str, Any]) -> None:
    """Fetch a run that is not on this machine from the mirror that the user names.

    Args:
        run: Folder of the run; if it has files, nothing is fetched.
        given: Settings that the user gives: dotted path -> value.

    Raises:
        ConfigError: No package for the address is installed.
        DataError: The address has no complete copy.
        ServiceUnavailableError: The address cannot be reached.
        StorageError: The folder cannot be written.
    """
    address = given.get("run.mirror")
    if address is not None and not (run.is_dir() and any(run.iterdir())):
        MirrorStore(str(address)).fetch(run)


def check_command(run: Path, command: str) -> None:
    """Check that a folder is a run of a command.

    Raises:
        ConfigError: It is a run of another command.
        DataError: The folder is not a run.
    """
    if not (run / "run.json").is_file():
        raise DataError(
            f"{run} is not a run folder: it has no run.json.",
            remedy=f"finqa {command} --resume RUN, with a folder that `finqa {command}` wrote",
        )
    facts = read_run(run)
    if (theirs := facts.get("command")) != command:
        raise ConfigError(
            f"{run} is a run of `finqa {theirs}`, not of `finqa {command}`.",
            remedy=f"finqa {theirs} --resume {shlex.quote(str(run))}"
            if theirs in RESUMABLE and not is_over(facts)
            else f"the same command with a folder that `finqa {command}` wrote",
        )


def _with_operational(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """Return the settings of a run with other ones of the pool, and other options of the engine.

    Raises:
        UsageError: A value is invalid.
    """
    pool = {path.removeprefix("pool."): value for path, value in given.items() if path.startswith("pool.")}
    prefix = "engine.options."
    options = {path.removeprefix(prefix): value for path, value in given.items() if path.startswith(prefix)}
    try:
        changed = PoolSettings.model_validate({**settings.pool.model_dump(), **pool})
    except ValidationError as error:
        wrong = error.errors()[0]
        raise UsageError(f"pool.{wrong['loc'][0]}: {wrong['msg']}.") from None
    engine = settings.engine.model_copy(update={"options": {**settings.engine.options, **options}})
    return settings.model_copy(update={"pool": changed, "engine": engine})


def stored_settings(run: Path, purpose: Purpose | None, given: Mapping[str, Any] = MappingProxyType({})) -> Settings:
    """Return the settings of a run, placed again on this machine.

    Args:
        run: Folder of the run.
        purpose: What the command runs; None: nothing is placed.
        given: Settings that the user gives: dotted path -> value. The limits of cost and tokens, the mirror, sandboxes
            and concurrency, options of the engine that cannot change results, the number of learner processes, and the
            address and the rollout workers of the cluster replace those of the run; others are not used.

    Raises:
        UsageError: The number of learner processes is neither a positive number nor `auto`, or a setting of the
            cluster is invalid.
        ConfigError: The settings are of another version of finqa, or engine or learner does not fit on this machine.
    """
    settings = from_public_dict(read_settings(run))
    free = ("run.max_", "run.mirror")
    limits = {path.removeprefix("run."): value for path, value in given.items() if path.startswith(free)}
    settings = settings.model_copy(update={"run": settings.run.model_copy(update=limits)})
    settings = _with_operational(settings, given)
    cluster = {path.removeprefix("cluster."): value for path, value in given.items() if path.startswith("cluster.")}
    if cluster:
        try:
            changed = ClusterSettings.model_validate({**settings.cluster.model_dump(), **cluster})
        except ValidationError:
            raise UsageError(
                "--cluster-address takes auto, local or HOST:PORT, and cluster.rollout_workers a number from 0."
            ) from None
        settings = settings.model_copy(update={"cluster": changed})
    path = "train.learner_processes"
    if (wanted := given.get(path)) is not None:
        wanted = str(wanted)
        if wanted != AUTO and not (wanted.isdecimal() and int(wanted)):
            raise UsageError("--learner-processes must be a number above 0, or auto.")
        placed = {*settings.run.placed, path} if wanted == AUTO else {*settings.run.placed} - {path}
        count = 1 if wanted == AUTO else int(wanted)
        settings = settings.model_copy(
            update={
                "train": settings.train.model_copy(update={"learner_processes": count}),
                "run": settings.run.model_copy(update={"placed": tuple(sorted(placed))}),
            }
        )
    return settings if purpose is None else place_again(settings, purpose)


def stored_parameter(run: Path, name: str, command: str) -> Any:
    """Return a parameter of a run from its manifest, with paths that are usable in this working directory.

    Raises:
        DataError: The manifest is missing or damaged, or does not have the parameter.
    """
    try:
        value = parse_json((run / MANIFEST).read_text(encoding="utf-8"))["parameters"][name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{run} ended before it wrote its parameters ({error!r}).",
            remedy=f"`finqa {command}` with another --run-dir; this folder contains nothing to resume",
        ) from error
    if isinstance(value, list):
        return [located(run, each) if isinstance(each, str) else each for each in value]
    return located(run, value) if isinstance(value, str) else value
