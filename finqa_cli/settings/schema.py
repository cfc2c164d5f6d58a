"""The sections of the settings: what can be set, its type, default, limits, help, flags and environment variable.

A setting is declared here and nowhere else: one field, by `setting(default, help, flags, ...)`. `make reference` writes
it into docs/reference.md and .env.example. Each section is frozen and refuses unknown keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from finqa_cli.settings.declarations import declare, setting
from finqa_cli.settings.help_panels import OPTION_FLAGS, PANELS, RUN, TRAINING
from finqa_cli.settings.learning_rates import SFT_SHOWN, TRAIN_SHOWN

EMBEDDED = "embedded"
"""Name of the small policy that ships with the package; `embedded-NAME` are others, for other environments."""


def is_embedded(model: str) -> bool:
    """Return whether a model is a small policy that ships with the package, so that its profile applies."""
    return model == EMBEDDED or model.startswith(f"{EMBEDDED}-")


ENVIRONMENT = "environment"
"""Name of the default reward: the environment's own verdict."""

AUTO = "auto"
"""Value of a setting that finqa chooses, for example by what this machine has."""

PositiveInt = Annotated[int, Field(ge=1)]
NaturalInt = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """Base of all sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


KINDS: Mapping[str, str] = {"trackers": "tracker", "grader": "engine"}
"""Section -> kind of its components, where they differ: a judge is an engine."""


class Choice(Section):
    """One component by name, with its own options; `finqa plugins show NAME` lists them.

    Attributes:
        name: Name of the component.
        options: Options of the component; those that are absent have their defaults.
    """

    name: str = Field(min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)


class PoolSettings(Section):
    """The pool of sandboxes and how attempts run in it."""

    sandboxes: Annotated[int, Field(ge=1, le=100_000)] = setting(
        500, "Most sandboxes in the pool", "--sandboxes", variable="SANDBOX_COUNT", main=True, resumable=True
    )
    ask_above: PositiveInt = setting(
        10_000, "Number of sandboxes above which a run asks for confirmation; without a terminal the answer is no"
    )
    sessions_per_sandbox: PositiveInt = setting(
        1, "Episodes that share a sandbox at once", "--sessions-per-sandbox", variable="SESSIONS_PER_SANDBOX"
    )
    max_concurrent_create: PositiveInt = setting(
        100,
        "Sandboxes that may be starting at once",
        "--max-concurrent-create",
        variable="MAX_CONCURRENT_CREATE",
        resumable=True,
    )
    max_concurrent_play: PositiveInt = setting(
        200,
        "Episodes that may be active at once",
        "--max-concurrent-play",
        variable="MAX_CONCURRENT_PLAY",
        resumable=True,
    )
    max_play_retries: NaturalInt = setting(
        3,
        "Recoveries and restarts of an episode after sandbox faults",
        "--max-play-retries",
        variable="MAX_PLAY_RETRIES",
        resumable=True,
    )
    max_fault_share: Fraction = setting(
        0.2,
        "Largest share of the episodes of an iteration or evaluation that may end in faults after all retries; more "
        "end the run",
    )
    breaker_share: Annotated[float, Field(gt=0.0, le=1.0)] = setting(
        0.5, "Largest share of the latest starts and episodes that may end in sandbox faults; more end the run"
    )
    health_check_s: Annotated[float, Field(ge=0.0)] = setting(
        15.0, "Time between two health checks of every sandbox; 0: only after a fault", unit="seconds"
    )

    @property
    def concurrency(self) -> int:
        """Episodes that can be active at once."""
        return min(self.max_concurrent_play, self.sandboxes * self.sessions_per_sandbox)


class DataSettings(Section):
    """The questions: where they come from, and which splits are used."""

    snapshot: str = setting("openenv-finqa", "Name of the data set", "--snapshot", main=True, min_length=1)
    path: Path | None = setting(None, "Data file or folder instead of a snapshot", "--data", main=True)
    train_split: str = setting("train", "Split for training", "--dataset-split")
    eval_split: str = setting(
        "dev,test,train", "Evaluation split; of several, the first that exists", "--split", main=True
    )
    max_prompt_tokens: PositiveInt | None = setting(
        None, "Longest prompt that is used for training", unit="tokens", shown="no limit"
    )
    allow_evaluation_only: bool = setting(
        False, "Training on data that is for evaluation only", "--allow-evaluation-data", panel=TRAINING
    )
    allow_overlap: bool = setting(
        False, "Training on companies or questions that are also used for evaluation", "--allow-overlap", panel=TRAINING
    )
    home: Path = setting(
        Path("~/.cache/finqa"), "Folder of snapshots, the sandbox ledger and logs", variable="FINQA_HOME"
    )

    @field_validator("home")
    @classmethod
    def _expand(cls, home: Path) -> Path:
        return home.expanduser()


class ModelSettings(Section):
    """The policy model and how it is placed on GPUs."""

    name: str = setting(
        AUTO,
        "Model folder, hub id, or `embedded`",
        "--model",
        variable="MODEL_NAME",
        main=True,
        shown="auto",
        min_length=1,
    )
    tensor_parallel_size: PositiveInt = setting(
        1,
        "GPUs that share one copy of the model",
        "--tensor-parallel-size",
        variable="TENSOR_PARALLEL_SIZE",
        placed=True,
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = setting(
        0.85,
        "Share of GPU memory for the engine",
        "--gpu-memory-utilization",
        variable="GPU_MEMORY_UTILIZATION",
        placed=True,
    )
    max_model_len: NaturalInt = setting(
        0, "Longest prompt plus completion; 0: the model's own limit", "--max-model-len", unit="tokens", placed=True
    )
    sleep: bool = setting(
        False,
        "Release of the engine's GPUs during updates, for a learner on the same ones",
        "--sleep/--no-sleep",
        placed=True,
    )
    engine_devices: tuple[NaturalInt, ...] = setting(
        (), "CUDA devices of the engine, as numbered in this process", placed=True
    )
    learner_devices: tuple[NaturalInt, ...] = setting(
        (), "CUDA devices of the learner, as numbered in this process", placed=True
    )


class LoraSettings(Section):
    """The LoRA adapter."""

    rank: NaturalInt = setting(
        16, "LoRA rank; 0: all weights are trained", "--lora-rank", variable="LORA_RANK", main=True
    )
    alpha: PositiveInt = setting(32, "LoRA alpha, the scale's numerator", "--lora-alpha", variable="LORA_ALPHA")
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = setting(
        0.0, "Dropout on the adapter's input", "--lora-dropout", variable="LORA_DROPOUT"
    )
    target_modules: tuple[str, ...] = setting(
        (),
        "Names of the layers to adapt, separated by commas or spaces; none: the projections of attention and MLP, or "
        "all linear layers of the text decoder where they have other names",
        "--lora-target-modules",
        variable="LORA_TARGET_MODULES",
        shown="all attention and MLP projections",
    )


class GenerationSettings(Section):
    """How the policy generates during rollouts.

    `episode_timeout_s` excludes recovery from faults, the completions of engines that train (they may queue;
    `max_gen_tokens` and `max_steps` limit them), and other engines' waits for rate limits and free places.
    """

    max_gen_tokens: PositiveInt = setting(
        512, "Limit of tokens per generation", "--max-gen-tokens", variable="MAX_GEN_TOKENS", main=True
    )
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = setting(
        1.0, "Sampling temperature of rollouts", "--temperature", variable="TEMPERATURE", main=True
    )
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = setting(1.0, "Nucleus sampling mass of rollouts")
    max_steps: PositiveInt = setting(20, "Limit of tool calls per episode", "--max-steps", main=True)
    episode_timeout_s: Annotated[float, Field(ge=0.0)] = setting(
        1800.0, "Time limit of an episode, which is graded when it is reached; 0: no limit", unit="seconds"
    )
    max_episode_tokens: PositiveInt | None = setting(
        None,
        "Prompt and sampled tokens after which no further turn of an episode begins; it is then graded",
        "--max-episode-tokens",
        shown="none",
    )
    max_episode_cost: Annotated[float, Field(gt=0)] | None = setting(
        None,
        "Cost after which no further turn of an episode begins; it is then graded",
        "--max-episode-cost",
        unit="US dollars",
        shown="none",
    )
    rollout_dispatch_wait_ms: NaturalInt = setting(
        500,
        "Longest wait to fill a generation batch; unused in lockstep (CPU)",
        "--rollout-dispatch-wait-ms",
        variable="ROLLOUT_DISPATCH_WAIT_MS",
        unit="ms",
    )
    engine_replicas: PositiveInt = setting(
        1, "Replicas of a token engine, each on its own devices", "--engine-replicas", placed=True
    )


class TrainSettings(Section):
    """The training loop.

    `off_policy` sets how the loss corrects for a sampler that differs from the learner, by age or by rounding. Its
    ratio is that of the weights before the iteration's first step to the sampler. `token` truncates it per token at
    `off_policy_cap`, `sequence` takes the product over a sequence and omits sequences above the cap, `icepop` omits
    tokens outside [`off_policy_floor`, `off_policy_cap`], `geometric` omits sequences whose geometric mean is outside;
    `none` corrects nothing; `auto` is `token`. Default bounds are 2 (token, sequence), 0.5 to 5 (icepop) and 0.99 to
    1.01 (geometric).

    `truncated` sets how episodes that a limit ended (turns, context, time, or tokens of the last completion) are used:
    `keep` trains on them as graded; `mask` omits them from the loss, though the others are compared with their reward;
    `penalize` subtracts 1 from their reward, and up to 1 where a completion is within `overlong_buffer` of its limit.

    Over `warmup_share` of the planned steps of all iterations of `finqa train` the learning rate rises; over the others
    it stays, or falls to 0 by `schedule` (sft and dpo have warm-ups of their own and always fall). Steps that are
    skipped (no group had signal, or the KL target was reached) leave it above 0 at the end.
    """

    iterations: PositiveInt = setting(
        10,
        "Training iterations",
        "--iterations --num-steps",
        variable="TRAINING_ITERATIONS",
        main=True,
        resumable=True,
    )
    group_size: PositiveInt = setting(
        6,
        "Attempts at the same question",
        "--group-size --num-generations",
        variable="EPISODES_PER_GROUP",
        main=True,
    )
    target_groups_per_iter: NaturalInt = setting(
        100,
        "Informative groups per iteration; 0: no target",
        "--target-groups-per-iter --batch-size",
        variable="TARGET_GROUPS_PER_ITER",
        main=True,
    )
    max_rollout_rounds: PositiveInt = setting(
        8,
        "Limit of groups per iteration, as a multiple of the pool's capacity",
        "--max-rollout-rounds",
        variable="MAX_ROLLOUT_ROUNDS",
    )
    learning_rate: Annotated[float, Field(gt=0.0)] | None = setting(
        None, "AdamW step size", "--lr --learning-rate", variable="LEARNING_RATE", main=True, shown=TRAIN_SHOWN
    )
    schedule: Literal["constant", "linear", "cosine"] = setting("constant", "Learning rate after the warm-up")
    warmup_share: Annotated[float, Field(ge=0.0, lt=1.0)] = setting(
        0.0, "Share of the planned steps in which the learning rate rises"
    )
    grpo_update_batch_size: PositiveInt = setting(
        12, "Episodes per micro-batch of an update", "--grpo-update-batch-size", variable="GRPO_UPDATE_BATCH_SIZE"
    )
    token_budget: PositiveInt = setting(16384, "Limit of tokens per micro-batch", placed=True)
    updates_per_iteration: PositiveInt = setting(1, "Optimizer steps that the samples of an iteration are divided into")
    max_grad_norm: Annotated[float, Field(gt=0.0)] = setting(1.0, "Norm at which gradients are clipped")
    gradient_checkpointing: bool | None = setting(
        None,
        "Recomputation of activations in the backward pass",
        "--gradient-checkpointing/--disable-gradient-checkpointing",
        shown="where memory needs it",
    )
    learner_processes: PositiveInt = setting(
        1,
        "Processes that train together (FSDP2), each on its own device",
        "--learner-processes",
        placed=True,
        resumable=True,
        typed=str,
    )
    sync_every: PositiveInt = setting(
        1, "Iterations between weight syncs from learner to engine", "--sync-every", variable="SYNC_EVERY"
    )
    sync_wait_s: Annotated[float, Field(ge=0.0)] = setting(
        300.0, "Longest wait at a weight sync for an engine that cannot be reached", unit="seconds"
    )
    max_staleness: NaturalInt = setting(
        1,
        "Iterations that rollouts may run ahead of the learner; 0: wait for every update",
        "--max-staleness",
        placed=True,
        shown="1; 0 for the embedded policy",
    )
    off_policy: Literal["auto", "none", "token", "sequence", "icepop", "geometric"] = setting(
        "auto",
        "Correction of the loss for a sampler that differs from the learner",
        "--off-policy",
        shown="auto: token",
    )
    off_policy_cap: Annotated[float, Field(ge=1.0)] | None = setting(
        None, "Upper bound of the off-policy ratio", shown="by train.off_policy"
    )
    off_policy_floor: Annotated[float, Field(gt=0.0, le=1.0)] | None = setting(
        None, "Lower bound of the off-policy ratio", shown="by train.off_policy"
    )
    truncated: Literal["keep", "mask", "penalize"] = setting("keep", "Use of episodes that ended at a limit")
    overlong_buffer: PositiveInt | None = setting(
        None,
        "Distance to the limit of a generation from which long completions are penalized",
        unit="tokens",
        shown="a fifth of generation.max_gen_tokens",
    )
    eval_every: NaturalInt = setting(0, "Iterations between evaluations; 0: none in between")
    checkpoint_every: PositiveInt = setting(1, "Iterations between checkpoints")
    keep_checkpoints: NaturalInt = setting(3, "Newest checkpoints that are kept; 0: all")
    preflight: bool = setting(
        True, "Check before training that stops if nothing can be learned", "--preflight/--no-preflight"
    )
    shuffle_rewards: bool = setting(False, "Control experiment: rewards are assigned at random", "--shuffle-rewards")
    seed: NaturalInt = setting(0, "Seed of every random choice", "--seed", panel=RUN, main=True)

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.overlong_buffer is not None and self.truncated != "penalize":
            raise ValueError(f"overlong_buffer has no effect with truncated={self.truncated}; it belongs to penalize")
        if self.off_policy_cap is not None and self.off_policy == "none":
            raise ValueError("off_policy_cap has no effect with off_policy=none; leave it out")
        if self.off_policy_floor is not None and self.off_policy not in ("icepop", "geometric"):
            raise ValueError(
                f"off_policy_floor has no effect with off_policy={self.off_policy}; it belongs to icepop and geometric"
            )
        return self


class EvalSettings(Section):
    """Evaluation.

    `seed` decides which questions a `limit` leaves, so that runs of different `train.seed` are compared on the same.
    """

    limit: NaturalInt = setting(0, "Number of questions; 0: all", "--limit", main=True)
    seed: NaturalInt = setting(0, "Seed that selects the questions of a limit")
    attempts: PositiveInt = setting(1, "Attempts per question", "--attempts", main=True)
    ids: tuple[str, ...] = setting((), "Ids of the questions, separated by commas", "--ids", shown="all")
    kinds: tuple[str, ...] = setting((), "Question types, separated by commas", "--kind", shown="all")
    companies: tuple[str, ...] = setting((), "Companies, separated by commas", "--company", shown="all")
    range: str | None = setting(
        None, "Questions by their position in the split", "--range", shown="all", pattern=r"^[1-9]\d{0,8}-[1-9]\d{0,8}$"
    )
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = setting(
        0.0, "Sampling temperature; 0: greedy", "--temperature", main=True
    )


class SftSettings(Section):
    """Supervised fine-tuning.

    Every `validate_every` steps the loss on held-out demonstrations is taken (those of `validation_share` of the
    companies), and the policy answers `validation_samples` held-out questions, greedily.
    """

    epochs: Annotated[float, Field(gt=0.0)] = setting(3.0, "Passes over the data", "--epochs", main=True)
    learning_rate: Annotated[float, Field(gt=0.0)] | None = setting(
        None, "Peak AdamW step size", "--lr --learning-rate", main=True, shown=SFT_SHOWN
    )
    batch_tokens: PositiveInt = setting(
        8192, "Tokens of one optimizer step, without padding", "--batch-tokens", main=True
    )
    warmup_share: Fraction = setting(0.03, "Share of the steps in which the learning rate rises")
    warmup_steps: NaturalInt | None = setting(
        None, "Steps in which the learning rate rises, in place of the share", shown="by sft.warmup_share"
    )
    validation_share: Annotated[float, Field(ge=0.0, lt=1.0)] = setting(0.02, "Share of the companies held out")
    validate_every: PositiveInt | None = setting(
        None,
        "Steps between validations on held-out companies, each with a checkpoint",
        "--validate-every",
        shown="a quarter of the steps, but 10 to 200",
    )
    validation_samples: NaturalInt | None = setting(
        None,
        "Held-out questions that the policy answers at each validation; 0: none",
        "--validation-samples",
        shown="16 if the environment has any",
    )
    minimum_reward: float | None = setting(
        None, "Smallest reward of imitated episodes", "--minimum-reward", shown="all episodes", main=True
    )


class RunSettings(Section):
    """The run folder and its trackers' project."""

    dir: Path | None = setting(None, "Folder of the run", "--run-dir", main=True, shown="runs/YYYYMMDD_HHMMSS")
    placed: tuple[str, ...] = setting(
        (), "Settings that the placement plan determined; recorded by the command and planned again on a resume"
    )
    tags: tuple[str, ...] = setting((), "Tags of the run, separated by commas, for finqa ls --filter", "--tags")
    project: str = setting("finqa", "Project of the run in trackers", "--project", min_length=1)
    save_token_ids: bool = setting(False, "Token ids in trajectories.jsonl", "--save-token-ids")
    mirror: str | None = setting(
        None,
        "Address to which a training run is copied at each checkpoint, such as s3://BUCKET/RUN; --resume fetches it",
        "--run-mirror",
        shown="none",
        resumable=True,
        pattern=r"^[a-z][a-z0-9+.\-]*://",
    )
    max_cost: Annotated[float, Field(gt=0)] | None = setting(
        None,
        "Cost at which the run stops; --resume with a larger limit continues",
        "--max-cost",
        unit="US dollars",
        shown="none",
        resumable=True,
    )
    max_tokens: PositiveInt | None = setting(
        None, "Number of prompt and sampled tokens at which the run stops", "--max-tokens", shown="none", resumable=True
    )
    max_time_s: Annotated[float, Field(gt=0)] | None = setting(
        None,
        "Time after which no episode begins; --resume continues",
        "--max-time",
        unit="seconds",
        shown="none",
        resumable=True,
    )
    gpu_hour_price: Annotated[float, Field(ge=0)] = setting(
        0.0, "Price of one GPU for an hour; 0: not counted", unit="US dollars"
    )
    sandbox_hour_price: Annotated[float, Field(ge=0)] = setting(
        0.0, "Price of one sandbox for an hour; 0: not counted", unit="US dollars"
    )


class ClusterSettings(Section):
    """The Ray cluster whose nodes run rollout workers, and engines and learners that are named `ray:NAME`."""

    address: str = setting(
        "auto",
        "Ray cluster of rollout workers and `ray:NAME` engines and learners: HOST:PORT, `auto` (the one of this "
        "machine) or `local` (a new one on this machine)",
        "--cluster-address",
        resumable=True,
        pattern=r"^(auto|local|[\w.\-]+:\d{1,5})$",
    )
    rollout_workers: NaturalInt = setting(
        0,
        "Processes on the nodes that play the episodes, each with its share of the sandboxes; 0: this process plays",
        resumable=True,
    )


class Settings(Section):
    """Everything that a run depends on."""

    environment: Choice = setting(
        Choice(name="finqa"), "Environment that provides and grades tasks", "--environment", main=True
    )
    engine: Choice = setting(Choice(name=AUTO), "Engine; see finqa plugins", "--engine", main=True)
    sandbox: Choice = setting(Choice(name=AUTO), "Sandbox provider, such as docker", "--sandbox", main=True)
    optimizer: Choice = setting(Choice(name="grpo"), "Training method", "--optimizer", main=True)
    reward: Choice = setting(
        Choice(name=ENVIRONMENT),
        "Reward; see finqa rewards",
        "--reward",
        main=True,
        shown="environment",
    )
    grader: Choice = setting(
        Choice(name="openai"), "Chat engine of the grader `judge`, which reads answers that `strict` cannot"
    )
    learner: Choice = setting(Choice(name="torch"), "Learner that updates the weights")
    codec: Choice = setting(Choice(name=AUTO), "Chat format of the model")
    trackers: tuple[Choice, ...] = setting((), "Tracker of metrics, such as wandb; repeatable", "--tracker", main=True)
    pool: PoolSettings = PoolSettings()
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    lora: LoraSettings = LoraSettings()
    generation: GenerationSettings = GenerationSettings()
    train: TrainSettings = TrainSettings()
    eval: EvalSettings = EvalSettings()
    sft: SftSettings = SftSettings()
    cluster: ClusterSettings = ClusterSettings()
    run: RunSettings = RunSettings()

    @field_validator("trackers", mode="before")
    @classmethod
    def _names_become_choices(cls, trackers: Any) -> Any:
        if isinstance(trackers, (list, tuple)):
            return tuple({"name": item} if isinstance(item, str) else item for item in trackers)
        return trackers


DECLARATIONS = declare(Settings, PANELS, OPTION_FLAGS)
"""Every setting by its dotted path."""

PLACED = tuple(path for path, each in DECLARATIONS.items() if each.about.placed)
"""Settings whose default is `auto`: the placement plan decides them if there are GPUs."""

BARE_NAMES: Mapping[str, str] = {
    each.about.variable: path for path, each in DECLARATIONS.items() if each.about.variable
}
"""Short environment variable -> setting. Every setting also has the variable FINQA_SECTION__FIELD."""
