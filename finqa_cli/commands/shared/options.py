"""Options that several commands share, and how they become settings.

A command lists the options that it takes as parameters with these types and default None; `load(ctx)` finds those that
were given by their parameter name in `PATHS`. Defaults are shown in the help as the settings define them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finqa_cli.commands.shared.effects import check_snapshot
from finqa_cli.settings import Loaded, load_settings

if TYPE_CHECKING:
    from finqa_cli.wiring.placing import Purpose

BACKENDS, ROLLOUT, POLICY, TRAINING, RUN, GENERAL = "Backends", "Rollout", "Model", "Training", "Run", "General"

PATHS: Mapping[str, str] = MappingProxyType(
    {
        "environment": "environment.name",
        "engine": "engine.name",
        "sandbox": "sandbox.name",
        "dangerously_run_unisolated": "sandbox.options.dangerously_run_unisolated",
        "optimizer": "optimizer.name",
        "reward": "reward.name",
        "hints": "environment.options.hints",
        "grader": "environment.options.grader",
        "model": "model.name",
        "tensor_parallel_size": "model.tensor_parallel_size",
        "gpu_memory_utilization": "model.gpu_memory_utilization",
        "max_model_len": "model.max_model_len",
        "sleep": "model.sleep",
        "snapshot": "data.snapshot",
        "data": "data.path",
        "train_split": "data.train_split",
        "eval_split": "data.eval_split",
        "allow_evaluation_data": "data.allow_evaluation_only",
        "allow_overlap": "data.allow_overlap",
        "sandboxes": "pool.sandboxes",
        "sessions_per_sandbox": "pool.sessions_per_sandbox",
        "max_concurrent_create": "pool.max_concurrent_create",
        "max_concurrent_play": "pool.max_concurrent_play",
        "max_play_retries": "pool.max_play_retries",
        "max_gen_tokens": "generation.max_gen_tokens",
        "temperature": "generation.temperature",
        "max_steps": "generation.max_steps",
        "rollout_dispatch_wait_ms": "generation.rollout_dispatch_wait_ms",
        "engine_replicas": "generation.engine_replicas",
        "iterations": "train.iterations",
        "group_size": "train.group_size",
        "target_groups_per_iter": "train.target_groups_per_iter",
        "max_rollout_rounds": "train.max_rollout_rounds",
        "learning_rate": "train.learning_rate",
        "grpo_update_batch_size": "train.grpo_update_batch_size",
        "gradient_checkpointing": "train.gradient_checkpointing",
        "learner_processes": "train.learner_processes",
        "sync_every": "train.sync_every",
        "max_staleness": "train.max_staleness",
        "off_policy": "train.off_policy",
        "shuffle_rewards": "train.shuffle_rewards",
        "seed": "train.seed",
        "lora_rank": "lora.rank",
        "lora_alpha": "lora.alpha",
        "lora_dropout": "lora.dropout",
        "lora_target_modules": "lora.target_modules",
        "limit": "eval.limit",
        "attempts": "eval.attempts",
        "eval_temperature": "eval.temperature",
        "run_dir": "run.dir",
        "save_token_ids": "run.save_token_ids",
        "dataset_split": "data.train_split",
        "dataset_limit": "environment.options.dataset_limit",
        "max_attempts": "environment.options.max_attempts",
        "tracker": "trackers",
        "project": "run.project",
    }
)
"""Parameter name of a command -> the setting that it overrides."""


EXIT_CODES = (
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 too many faults, 65 data, 69 service, 70 learner process, "
    "71 device memory, 74 storage, 77 key, 78 settings, 129, 130 and 143 stopped by a signal."
)
"""The last line of every command's help; README and CONTRIBUTING say more."""


def _option(names: str, text: str, panel: str, default: str | bool = False) -> Any:
    return typer.Option(*names.split(), help=text, rich_help_panel=panel, show_default=default)


def of_method(names: str, text: str, default: str | bool) -> Any:
    """An option of one training method; `default` is how the help shows it, for the method's settings decide."""
    return _option(names, text, "Method", default)


AsJson = Annotated[bool, _option("--json", "Print one JSON document on stdout and nothing else there.", GENERAL)]
Quiet = Annotated[bool, _option("--quiet -q", "No progress on stderr.", GENERAL)]
Config = Annotated[
    list[str] | None,
    _option(
        "--config -c",
        "Settings: a TOML, YAML or JSON file, or a name of finqa config list; repeatable, later wins.",
        GENERAL,
        "./finqa.toml",
    ),
]
Assign = Annotated[
    list[str] | None, _option("--set", "Any setting as section.key=value; repeatable. See finqa config.", GENERAL)
]
Seed = Annotated[int | None, _option("--seed", "Seed of every random choice.", GENERAL, "0")]

EnvironmentName = Annotated[str | None, _option("--environment", "What asks the questions.", BACKENDS, "finqa")]
Engine = Annotated[str | None, _option("--engine", "Who generates; see finqa plugins.", BACKENDS, "auto")]
Sandbox = Annotated[str | None, _option("--sandbox", "Who makes the boxes: local, daytona, ...", BACKENDS, "auto")]
DangerouslyRunUnisolated = Annotated[
    bool | None,
    _option(
        "--dangerously-run-unisolated",
        "Run the code that the policy writes without isolation: it can read, send and delete your files.",
        BACKENDS,
    ),
]
Optimizer = Annotated[str | None, _option("--optimizer", "Training method.", BACKENDS, "grpo")]
Reward = Annotated[
    str | None, _option("--reward", "What judges an answer; see finqa rewards.", BACKENDS, "the environment's verdict")
]
Grader = Annotated[
    str | None, _option("--grader", "Rules of the finqa environment: openenv, or strict.", BACKENDS, "openenv")
]
Hints = Annotated[
    bool | None, _option("--hints", "Let the tools explain common mistakes; this changes the task.", BACKENDS)
]

Model = Annotated[
    str | None, _option("--model", "Model folder, hub id, or `embedded`.", POLICY, "auto: embedded without a GPU")
]
TensorParallelSize = Annotated[
    int | None, _option("--tensor-parallel-size", "GPUs that share one copy of the model.", POLICY, "auto")
]
GpuMemoryUtilization = Annotated[
    float | None, _option("--gpu-memory-utilization", "Share of GPU memory for the engine.", POLICY, "auto")
]
MaxModelLen = Annotated[
    int | None,
    _option("--max-model-len", "Longest prompt plus completion in tokens; 0: the model's own limit.", POLICY, "auto"),
]
Sleep = Annotated[
    bool | None,
    _option(
        "--sleep/--no-sleep", "Free the engine's GPUs during updates, for a learner on the same ones.", POLICY, "auto"
    ),
]
LoraRank = Annotated[int | None, _option("--lora-rank", "Adapter rank; 0 trains all weights.", POLICY, "16")]
LoraAlpha = Annotated[int | None, _option("--lora-alpha", "Adapter scale numerator.", POLICY, "32")]
LoraDropout = Annotated[float | None, _option("--lora-dropout", "Dropout on the adapter's input.", POLICY, "0.0")]
LoraTargetModules = Annotated[
    str | None,
    _option("--lora-target-modules", "Comma list of layers to adapt.", POLICY, "all attention + MLP projections"),
]

Snapshot = Annotated[str | None, _option("--snapshot", "Name of the data set.", ROLLOUT, "openenv-finqa")]
Data = Annotated[
    Path | None, _option("--data", "Data file, for environments that take no snapshot.", ROLLOUT, "embedded tasks")
]
Split = Annotated[str | None, _option("--split", "Split of the questions.", ROLLOUT, "dev")]
Sandboxes = Annotated[int | None, _option("--sandboxes", "Sandboxes in the pool.", ROLLOUT, "500")]
SessionsPerSandbox = Annotated[
    int | None, _option("--sessions-per-sandbox", "Episodes that share a sandbox at once.", ROLLOUT, "1")
]
MaxConcurrentCreate = Annotated[
    int | None, _option("--max-concurrent-create", "Sandboxes that may be starting at once.", ROLLOUT, "100")
]
MaxConcurrentPlay = Annotated[
    int | None, _option("--max-concurrent-play", "Episodes that may be active at once.", ROLLOUT, "200")
]
MaxPlayRetries = Annotated[
    int | None,
    _option("--max-play-retries", "Recoveries and restarts of an episode after faults of boxes.", ROLLOUT, "3"),
]
Temperature = Annotated[float | None, _option("--temperature", "Sampling temperature.", ROLLOUT, "1.0")]
MaxSteps = Annotated[int | None, _option("--max-steps", "Most tool calls per episode.", ROLLOUT, "20")]
MaxGenTokens = Annotated[int | None, _option("--max-gen-tokens", "Most tokens per generation.", ROLLOUT, "512")]
DispatchWait = Annotated[
    int | None,
    _option(
        "--rollout-dispatch-wait-ms",
        "Longest wait to fill a generation batch; unused in lockstep (CPU).",
        ROLLOUT,
        "500",
    ),
]
EngineReplicas = Annotated[
    int | None,
    _option(
        "--engine-replicas",
        "Copies of a token engine, each on devices of its own, that share the work.",
        ROLLOUT,
        "auto",
    ),
]

Iterations = Annotated[int | None, _option("--iterations --num-steps", "Training iterations.", TRAINING, "10")]
GroupSize = Annotated[
    int | None, _option("--group-size --num-generations", "Attempts at the same question.", TRAINING, "6")
]
TargetGroups = Annotated[
    int | None,
    _option(
        "--target-groups-per-iter --batch-size",
        "Informative groups per iteration; 0 plays as many as the rounds allow.",
        TRAINING,
        "100",
    ),
]
MaxRolloutRounds = Annotated[
    int | None,
    _option("--max-rollout-rounds", "Groups at most, in fillings of the sandboxes.", TRAINING, "8"),
]
LearningRate = Annotated[float | None, _option("--lr --learning-rate", "AdamW step size.", TRAINING, "8e-5")]
UpdateBatchSize = Annotated[
    int | None, _option("--grpo-update-batch-size", "Episodes per micro-batch of an update.", TRAINING, "12")
]
LearnerProcesses = Annotated[
    str | None,
    _option("--learner-processes", "Processes that train together, each on a device of its own.", TRAINING, "auto"),
]
GradientCheckpointing = Annotated[
    bool | None,
    typer.Option(
        "--gradient-checkpointing/--disable-gradient-checkpointing",
        help="Recompute activations in the backward pass.",
        rich_help_panel=TRAINING,
        show_default="on",
    ),
]
SyncEvery = Annotated[int | None, _option("--sync-every", "Iterations between weight syncs.", TRAINING, "1")]
MaxStaleness = Annotated[
    int | None,
    _option(
        "--max-staleness",
        "Iterations that rollouts may run ahead of the learner; 0 waits for every update.",
        TRAINING,
        "1; 0 for the embedded policy",
    ),
]
OffPolicy = Annotated[
    str | None,
    _option(
        "--off-policy",
        "How the loss corrects for the sampler: none, token, sequence, icepop or geometric.",
        TRAINING,
        "auto: token",
    ),
]
ShuffleRewards = Annotated[
    bool | None, _option("--shuffle-rewards", "Control experiment: rewards are dealt out at random.", TRAINING)
]
AllowEvaluationData = Annotated[
    bool | None, _option("--allow-evaluation-data", "Train even on data that its owner keeps for evaluation.", TRAINING)
]
AllowOverlap = Annotated[
    bool | None,
    _option("--allow-overlap", "Train even when companies or questions are evaluated on as well.", TRAINING),
]
DatasetSplit = Annotated[str | None, _option("--dataset-split", "Split that is trained on.", ROLLOUT, "train")]
DatasetLimit = Annotated[
    int | None,
    _option("--dataset-limit", "Problems of each split at most; 0: all (environment mbpp).", ROLLOUT, "0"),
]
MaxAttempts = Annotated[
    int | None, _option("--max-attempts", "Solutions that may be tried at a problem (environment mbpp).", ROLLOUT, "3")
]
Limit = Annotated[int | None, _option("--limit", "Ask only so many questions; 0 asks all.", ROLLOUT, "0")]
Attempts = Annotated[int | None, _option("--attempts", "Attempts per question.", ROLLOUT, "1")]
RunDir = Annotated[Path | None, _option("--run-dir", "Folder of the run.", RUN, "a new one below runs/")]
Tracker = Annotated[
    list[str] | None,
    _option("--tracker", "Copy metrics there as well: tensorboard, wandb, trackio, ...; repeatable.", RUN, "none"),
]
Project = Annotated[str | None, _option("--project", "What trackers file the run under.", RUN, "finqa")]
SaveTokenIds = Annotated[bool | None, _option("--save-token-ids", "Token ids in trajectories.jsonl.", RUN)]


def load(
    ctx: typer.Context,
    extra: Mapping[str, Any] | None = None,
    *,
    quiet: bool = False,
    purpose: Purpose | None = None,
    assume_cuda: bool = False,
) -> Loaded:
    """Resolves the settings of a command, plans where engine and learner run, and sets up its logs.

    Lines on stderr name the backends and the placement that were chosen, unless `--json` or `--quiet` is given.

    Args:
        ctx: The command's context: parameters named in `PATHS`, and `config`, `assign`, `as_json`, `quiet`.
        extra: Further overrides by dotted path, such as an argument that stands for a setting.
        quiet: The command uses no backend, so which was chosen is of no interest.
        purpose: What the command runs; None: neither engine nor learner, so nothing is planned.
        assume_cuda: Choose backends as on a machine with CUDA devices and vLLM.

    Raises:
        ConfigError: A setting is unknown or wrong, or what is to run does not fit on this machine.
        UsageError: A flag would have no effect.
    """
    from finqa_cli import logs
    from finqa_cli.extend import registry

    given, environments = ctx.params, registry().components("environment")
    flags = {PATHS[name]: value for name, value in given.items() if name in PATHS}
    loaded = load_settings(
        flags={**flags, **(extra or {})},
        files=given.get("config") or (),
        assignments=given.get("assign") or (),
        registered={(component.kind, component.name) for component in registry().components()},
        modelless=[component.name for component in registry().components("engine") if component.modelless],
        policies={part.name: part.policy for part in environments if part.policy},
        assume_cuda=assume_cuda,
    )
    check_snapshot(ctx, loaded.settings.environment.name, environments)
    logs.configure()
    shown = not (quiet or given.get("as_json") or given.get("quiet"))
    if loaded.choices.line and shown:
        print(loaded.choices.line, file=sys.stderr)
    if purpose is None:
        run = loaded.settings.run.model_copy(update={"placed": tuple(sorted(loaded.undecided))})
        return replace(loaded, settings=loaded.settings.model_copy(update={"run": run}))
    from finqa_cli.placement.placement_types import plan_line
    from finqa_cli.wiring.placing import place

    placed = place(loaded.settings, loaded.undecided, purpose)
    if placed.plan.per_device and shown:
        print(f"placement: {plan_line(placed.plan, placed.settings.engine.name)}", file=sys.stderr)
    return replace(loaded, settings=placed.settings, plan=placed.plan)
