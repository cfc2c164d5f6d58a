"""Construction of components from settings. No other module constructs components."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from finqa_cli.contracts import (
    CallFormat,
    ChatCodec,
    ChatEngine,
    CodecContext,
    EngineContext,
    Environment,
    EnvironmentContext,
    Learner,
    LearnerContext,
    Optimizer,
    Reward,
    SandboxContext,
    SandboxProvider,
    TokenEngine,
    Tracker,
    TrackerContext,
)
from finqa_cli.data.data_problems import as_data_error
from finqa_cli.data.import_advice import IMPORTERS, advise_import, snapshot_name
from finqa_cli.data.openenv_layout.layout_reader import scan_layout
from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots
from finqa_cli.errors import ConfigError, DataError, PluginError
from finqa_cli.extend import missing_requirements, registry
from finqa_cli.grading import JUDGES, versioned
from finqa_cli.rollout.breaker import Breaker
from finqa_cli.rollout.pool import Pool, PoolListener, SandboxPool
from finqa_cli.rollout.replicas import EngineSet, ReplicaListener
from finqa_cli.rollout.seeds import derive
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import ENVIRONMENT, Settings
from finqa_cli.settings.learning_rates import TRAIN_RATES, rate_for
from finqa_cli.types import PolicyVersion, Snapshot
from finqa_cli.wiring.model_judge import ModelJudge
from finqa_cli.wiring.sandbox_owners import offer_strays

log = structlog.get_logger(__name__)

_OF_TRANSPORT = re.compile(r"_s$|^max_|_per_minute$|prices$|key|token")
"""Options of a judge on which no verdict depends: times, limits, prices and keys."""


def open_snapshot(settings: Settings, reporter: Reporter) -> Snapshot:
    """Open the snapshot of the settings. If the default one is missing, it is built from the embedded data.

    Raises:
        DataError: There is no such snapshot, or its files are damaged.
    """
    snapshot, built = LocalSnapshots(settings.data.home).get_or_build(settings.data.snapshot)
    if built:
        reporter.line(f"Built snapshot {snapshot.name} from the embedded data set ({snapshot.digest[:19]}).")
    return snapshot


def open_environment(settings: Settings, reporter: Reporter) -> Environment:
    """Construct the environment of the settings, with its data.

    Raises:
        ConfigError: A data file is given to an environment that takes a snapshot.
        DataError: The snapshot or file is missing or damaged.
    """
    if registry().find("environment", settings.environment.name).snapshotless:
        return _make_environment(settings, None, settings.data.path)
    if settings.data.path is not None:
        raise _takes_a_snapshot(settings, settings.data.path)
    return _make_environment(settings, open_snapshot(settings, reporter), None)


def try_environment(settings: Settings, path: Path, home: Path) -> Environment:
    """Construct the environment of the settings with the data at a path, as a run would.

    Args:
        settings: Settings with the environment and its options.
        path: File or folder with the data.
        home: Folder in which a data folder is compiled, if the environment takes a snapshot.

    Raises:
        DataError: The data is missing or malformed, or it is a file and the environment takes a folder.
        ConfigError: An option of the environment is wrong.
    """
    if registry().find("environment", settings.environment.name).snapshotless:
        return _make_environment(settings, None, path)
    if not path.is_dir():
        refusal = _takes_a_snapshot(settings, path, other="--for finqa-text")
        raise DataError(refusal.message, remedy=refusal.remedy)
    if problems := scan_layout(path).problems:
        raise as_data_error(problems, remedy=f"finqa data check {shlex.quote(str(path))}")
    snapshot, _ = LocalSnapshots(home).build(DEFAULT_NAME, path)
    return _make_environment(settings, snapshot, None)


def _make_environment(settings: Settings, snapshot: Snapshot | None, data: Path | None) -> Environment:
    choice, turns = settings.environment, settings.generation.max_steps
    context = EnvironmentContext(
        snapshot=snapshot, data=data, reward=make_reward(settings), max_turns=turns, judge=make_judge(settings)
    )
    environment: Environment = registry().create("environment", choice.name, choice.options, context)
    return environment


def _takes_a_snapshot(settings: Settings, path: Path, other: str = "--environment finqa-text") -> ConfigError:
    """The error for data that is not a snapshot. Its remedy has the commands that make a snapshot, or `other`."""
    if not path.exists():
        return ConfigError(f"There is no file or folder {path}.", remedy="give --data an existing path")
    name = snapshot_name(path)
    command = advise_import(path)
    if path.is_dir() and command == IMPORTERS:
        build = f"finqa snapshot build --snapshot-name {name} --data {shlex.quote(str(path))}"
        remedy = f"{build} and --snapshot {name} instead of --data"
    elif command == IMPORTERS:
        remedy = f"finqa plugins lists environments that read files; {command} lists importers for snapshots"
    else:
        build = f"finqa snapshot build --snapshot-name {name} --data DIR"
        text = "" if "import tables" in command else f"{other}, or "
        remedy = f"{text}{command} and {build}"
    return ConfigError(
        f"Environment {settings.environment.name!r} needs a snapshot, not the data at {path}.", remedy=remedy
    )


def make_judge(settings: Settings) -> ModelJudge | None:
    """Construct the judge of answers, not started; None unless the grader of the environment is `judge`.

    Raises:
        ConfigError: The judge has options but is not used, its engine is no chat engine, or it has no model.
    """
    choice = settings.grader
    if versioned(str(settings.environment.options.get("grader", ""))) not in JUDGES:
        if choice.options:
            raise ConfigError(
                f"grader.options.{next(iter(choice.options))} belongs to the grader judge, which is not used.",
                remedy="--grader judge",
            )
        return None
    component = registry().find("engine", choice.name)
    options = registry().config_class(component)
    model = str(choice.options.get("model") or "")
    if options is not None and "model" in options.model_fields and not model:
        raise ConfigError("The grader judge needs the name of a model.", remedy="--set grader.options.model=NAME")
    context = EngineContext(seed=settings.train.seed, home=settings.data.home)
    engine = registry().create("engine", choice.name, choice.options, context)
    if not isinstance(engine, ChatEngine):
        raise ConfigError(
            f"Engine {choice.name!r} returns token ids; a judge needs an engine that uses messages.",
            remedy="--set grader.name=openai",
        )
    depends = {name: value for name, value in choice.options.items() if not _OF_TRANSPORT.search(name)}
    return ModelJudge(
        engine,
        name=f"{choice.name} {model}".rstrip(),
        identity={"engine": choice.name, **depends},
        folder=settings.data.home / "judge",
        max_cost=settings.run.max_cost,
    )


def make_reward(settings: Settings) -> Reward | None:
    """Construct the reward of the settings; None means the environment's own verdict.

    Raises:
        ConfigError: The environment's own verdict has no options, but some are set; or an option is wrong.
    """
    choice = settings.reward
    if choice.name == ENVIRONMENT:
        if choice.options:
            raise ConfigError(
                f"The environment's own reward has no options, but got: {', '.join(choice.options)}.",
                remedy="name a reward with --reward; finqa plugins lists them",
            )
        return None
    reward: Reward = registry().create("reward", choice.name, choice.options)
    return reward


def make_verdict(settings: Settings) -> Reward | None:
    """Construct a reward that works without an environment: that of the settings, or the environment's `verdict`.

    None if the verdict is only available in an episode of the environment.
    """
    if (reward := make_reward(settings)) is not None:
        return reward
    component = registry().find("environment", settings.environment.name)
    if not component.verdict:
        return None
    verdict: Reward = registry().function(component, component.verdict)()
    return verdict


def make_provider(settings: Settings) -> SandboxProvider:
    """Construct the sandbox provider of the settings."""
    context = SandboxContext(
        home=settings.data.home,
        max_concurrent_create=settings.pool.max_concurrent_create,
        cluster=settings.cluster.address if _uses_cluster(settings) else "",
    )
    provider: SandboxProvider = registry().create("sandbox", settings.sandbox.name, settings.sandbox.options, context)
    return provider


def _uses_cluster(settings: Settings) -> bool:
    """Whether a part of the run is on the nodes of a cluster."""
    chosen = (("engine", settings.engine.name), ("learner", settings.learner.name))
    return settings.cluster.rollout_workers > 0 or any(registry().find(kind, name).elsewhere for kind, name in chosen)


async def make_pool(
    settings: Settings,
    environment: Environment,
    labels: Mapping[str, str],
    size: int,
    reporter: Reporter,
    on_event: PoolListener,
    *,
    breaker: Breaker | None = None,
) -> Pool:
    """Construct the pool of sandboxes that the environment needs, and report sandboxes that earlier runs left behind.

    Args:
        settings: Settings of provider and pool.
        environment: The environment; without a sandbox spec, the pool leases no sandboxes.
        labels: Labels of the sandboxes.
        size: Number of sandboxes.
        reporter: Shows the report, and a smaller size that the provider allows.
        on_event: Receives the events of the pool.
        breaker: Breaker to use; None: the pool makes its own.

    Raises:
        AuthenticationError: The key of the provider is missing.
    """
    spec = environment.sandbox_spec()
    if spec is None:
        return Pool()
    provider = make_provider(settings)
    provider.check_key()
    if (most := provider.most_sandboxes(spec)) is not None and most < size:
        reporter.line(
            f"sandboxes: {most} instead of {size}: provider {settings.sandbox.name} runs at most this many of this kind"
        )
        size = most
    await offer_strays(provider, reporter, settings.sandbox.name)
    return SandboxPool(
        provider,
        spec,
        size=size,
        max_concurrent_create=settings.pool.max_concurrent_create,
        labels=labels,
        sessions_per_sandbox=settings.pool.sessions_per_sandbox,
        health_check_s=settings.pool.health_check_s,
        breaker_share=settings.pool.breaker_share,
        breaker=breaker,
        on_event=on_event,
    )


def make_engine(
    settings: Settings,
    policy: PolicyVersion,
    environment: Environment | None = None,
    *,
    trains: bool = False,
    log_dir: Path | None = None,
    start: str = "0",
    on_event: ReplicaListener = lambda name, facts: None,
) -> TokenEngine | ChatEngine:
    """Construct the engine of the settings, not started; with `generation.engine_replicas` above 1, an `EngineSet`.

    Args:
        settings: Settings of the engine.
        policy: The version that the engine serves at first.
        environment: Supplies gold solutions to an engine without a model; only such an engine needs it.
        trains: The engine is used for training.
        log_dir: Folder for the output of servers that it starts.
        start: Names this start of an engine among all of the run; determines `EngineContext.process_seed`.
        on_event: Called when a replica is excluded and when it is back.

    Raises:
        ConfigError: An option is wrong, or replicas of a chat engine are requested.
    """
    choice, replicas = settings.engine, settings.generation.engine_replicas
    modelless = registry().find("engine", choice.name).modelless
    context = EngineContext(
        model=policy.model,
        seed=settings.train.seed,
        dispatch_wait_ms=settings.generation.rollout_dispatch_wait_ms,
        tensor_parallel_size=settings.model.tensor_parallel_size,
        gpu_memory_utilization=settings.model.gpu_memory_utilization,
        max_context=settings.model.max_model_len,
        sleep=settings.model.sleep and trains,
        lora_rank=settings.lora.rank,
        needs_tokens=trains or policy.adapter is not None,
        replicas=replicas,
        versions=settings.train.max_staleness + 1 if trains else 1,
        home=settings.data.home,
        log_dir=log_dir,
        lends=settings.cluster.rollout_workers > 0,
        cluster=settings.cluster.address,
        demonstrate=environment.demonstrate_task if environment is not None and modelless else None,
    )
    share, devices = settings.model.tensor_parallel_size, settings.model.engine_devices
    contexts = [
        replace(
            context,
            replica=number,
            process_seed=derive(context.seed, "engine", start, number),
            devices=devices[number * share : (number + 1) * share],
        )
        for number in range(replicas)
    ]
    if replicas == 1:
        engine: TokenEngine | ChatEngine = registry().create("engine", choice.name, choice.options, contexts[0])
        return engine
    engines = [registry().create("engine", choice.name, choice.options, each) for each in contexts]
    if not all(isinstance(engine, TokenEngine) for engine in engines):
        raise ConfigError(
            f"Engine {choice.name!r} uses messages, not token ids; only token engines can have replicas.",
            remedy="--engine-replicas 1",
        )
    return EngineSet(engines, serving=PolicyVersion(number=0, model=policy.model), on_event=on_event)


def make_call_format(name: str) -> CallFormat:
    """Construct a call format by its name."""
    made: CallFormat = registry().create("call_format", name, {})
    return made


def make_codec(settings: Settings, model: str) -> ChatCodec:
    """Construct the chat codec of the settings for a model."""
    formats = [component.name for component in registry().components("call_format")]
    makers = {name: partial(make_call_format, name) for name in formats}
    context = CodecContext(model=model, call_formats=makers)
    codec: ChatCodec = registry().create("codec", settings.codec.name, settings.codec.options, context)
    return codec


def make_learner(settings: Settings, model: str, *, logs: Path | None = None) -> Learner:
    """Construct the learner of the settings, not started; `logs` is the folder for the output of its processes."""
    lora, train = settings.lora, settings.train
    context = LearnerContext(
        model=model,
        learning_rate=train.learning_rate or rate_for(lora.rank, TRAIN_RATES),
        lora_rank=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        lora_target_modules=lora.target_modules,
        gradient_checkpointing=train.gradient_checkpointing,
        max_grad_norm=train.max_grad_norm,
        temperature=settings.generation.temperature,
        seed=train.seed,
        token_budget=train.token_budget,
        processes=train.learner_processes,
        devices=settings.model.learner_devices,
        logs=logs,
        cluster=settings.cluster.address,
    )
    learner: Learner = registry().create("learner", settings.learner.name, settings.learner.options, context)
    return learner


def make_optimizer(settings: Settings) -> Optimizer:
    """Construct the optimizer of the settings."""
    return make_optimizer_by_name(settings.optimizer.name, settings.optimizer.options)


def make_optimizer_by_name(name: str, options: Mapping[str, Any]) -> Optimizer:
    """Construct an optimizer by name and options, as recorded in a run."""
    optimizer: Optimizer = registry().create("optimizer", name, options)
    return optimizer


def make_tracker(name: str, options: Mapping[str, Any], context: TrackerContext) -> Tracker:
    """Construct a tracker by its name."""
    tracker: Tracker = registry().create("tracker", name, options, context)
    return tracker


def make_trackers(settings: Settings, run_dir: Path) -> list[Tracker]:
    """Construct the trackers of the settings, and the standing trackers whose packages are installed.

    A tracker that cannot be constructed is skipped with a warning.
    """
    context = TrackerContext(run_dir=run_dir, run_id=run_dir.name, project=settings.run.project)
    named = {choice.name: choice.options for choice in settings.trackers}
    standing = [part for part in registry().components("tracker") if part.standing and not missing_requirements(part)]
    wanted = {**{part.name: {} for part in standing}, **named}
    trackers: list[Tracker] = []
    for name, options in wanted.items():
        try:
            trackers.append(make_tracker(name, options, context))
        except PluginError as error:  # trackers are only copies, so their failures must not stop the run
            # Log: A tracker cannot be constructed; the run continues without it.
            log.warning(f"Tracker {name!r} is not used: {error.message}")
    return trackers
