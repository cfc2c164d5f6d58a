"""The sections of the settings: what can be set, its default and its limits.

Each section is frozen and refuses unknown keys. To add a setting: one field here, and a line in `.env.example` when it
has a variable of its own in `sources.BARE_NAMES`; `--set section.field=value` and `FINQA_SECTION__FIELD` work at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

EMBEDDED = "embedded"
"""Name of the small policy that ships with the package; `embedded-NAME` are others, for other environments."""


def is_embedded(model: str) -> bool:
    """Whether it is a small policy that is shipped, so that the profile for two processor cores applies."""
    return model == EMBEDDED or model.startswith(f"{EMBEDDED}-")


ENVIRONMENT = "environment"
"""Stands for the environment's own verdict, where a reward could be named instead."""

AUTO = "auto"
"""Stands for a backend that is chosen by what this machine has."""

PositiveInt = Annotated[int, Field(ge=1)]
NaturalInt = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

ATTENTION_AND_MLP = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Section(BaseModel):
    """Base of all sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class Choice(Section):
    """One component by name, with its own options; `finqa plugins show NAME` lists them."""

    name: str = Field(min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)


class PoolSettings(Section):
    """The pool of sandboxes and how attempts run in it.

    `health_check_s` is the time between two looks at every box; 0 looks only after a fault. The run stops when more
    than `breaker_share` of the latest starts and episodes ended in faults of boxes; more than `max_fault_share` of
    the episodes of an iteration or evaluation, after all retries, ends it as well.
    """

    sandboxes: PositiveInt = 500
    sessions_per_sandbox: PositiveInt = 1
    max_concurrent_create: PositiveInt = 100
    max_concurrent_play: PositiveInt = 200
    max_play_retries: NaturalInt = 3
    max_fault_share: Fraction = 0.2
    breaker_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    health_check_s: Annotated[float, Field(ge=0.0)] = 15.0

    @property
    def concurrency(self) -> int:
        """Episodes that can be active at once."""
        return min(self.max_concurrent_play, self.sandboxes * self.sessions_per_sandbox)


class DataSettings(Section):
    """Which questions are asked. With `max_prompt_tokens`, those with longer prompts are not trained on."""

    snapshot: str = Field(default="openenv-finqa", min_length=1)
    path: Path | None = None
    train_split: str = "train"
    eval_split: str = "dev"
    max_prompt_tokens: PositiveInt | None = None
    allow_evaluation_only: bool = False
    allow_overlap: bool = False
    home: Path = Path("~/.cache/finqa")

    @field_validator("home")
    @classmethod
    def _expand(cls, home: Path) -> Path:
        return home.expanduser()


class ModelSettings(Section):
    """The policy model and how it lies on the GPUs."""

    name: str = Field(default=AUTO, min_length=1)
    tensor_parallel_size: PositiveInt = 2
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = 0.85


class LoraSettings(Section):
    """The adapter. Rank 0 trains all weights instead."""

    rank: NaturalInt = 16
    alpha: PositiveInt = 32
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    target_modules: tuple[str, ...] = ATTENTION_AND_MLP

    @field_validator("target_modules")
    @classmethod
    def _needs_targets(cls, modules: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not modules and info.data.get("rank"):
            raise ValueError("name at least one layer, or set lora.rank to 0 to train all weights")
        return modules


class GenerationSettings(Section):
    """How the policy speaks during rollouts."""

    max_gen_tokens: PositiveInt = 512
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    max_steps: PositiveInt = 20
    episode_timeout_s: Annotated[float, Field(ge=0.0)] = 1800.0
    rollout_dispatch_wait_ms: NaturalInt = 500
    engine_replicas: PositiveInt = 1


class TrainSettings(Section):
    """The training loop.

    `max_staleness` is how many iterations rollouts may run ahead of the learner; 0 waits for every update. `off_policy`
    says how the loss meets tokens that older weights sampled: `clip` by PPO's clipped ratio to the sampler; `token` and
    `sequence` decoupled, weighed by importance ratios that are truncated per token or masked per sequence at
    `off_policy_cap`; `auto` is `clip` at max_staleness 0, else `token`.

    Over `warmup_share` of the planned steps of all iterations of `finqa train` the learning rate rises; over the others
    it stays, or falls to 0 as `schedule` says (sft and dpo have warm-ups of their own and always fall). Steps that are
    skipped, because no group carried signal or the KL target was reached, leave it above 0 at the end.

    `learner_processes` train together (FSDP2), each on a device of its own; they are started by the command.
    """

    iterations: PositiveInt = 10
    group_size: Annotated[int, Field(ge=2)] = 6
    target_groups_per_iter: NaturalInt = 100
    max_rollout_rounds: PositiveInt = 8
    learning_rate: Annotated[float, Field(gt=0.0)] = 8e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    grpo_update_batch_size: PositiveInt = 12
    token_budget: PositiveInt = 16384
    updates_per_iteration: PositiveInt = 1
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    gradient_checkpointing: bool = True
    learner_processes: PositiveInt | Literal["auto"] = "auto"
    sync_every: PositiveInt = 1
    max_staleness: NaturalInt = 1
    off_policy: Literal["auto", "clip", "token", "sequence"] = "auto"
    off_policy_cap: Annotated[float, Field(ge=1.0)] = 2.0
    eval_every: NaturalInt = 0
    checkpoint_every: PositiveInt = 1
    keep_checkpoints: NaturalInt = 3
    shuffle_rewards: bool = False
    seed: NaturalInt = 0


class EvalSettings(Section):
    """Evaluation: `limit` 0 asks every question of the split; `attempts` per question.

    `seed` decides which questions a `limit` leaves, so that runs of different `train.seed` are asked the same.
    """

    limit: NaturalInt = 0
    seed: NaturalInt = 0
    attempts: PositiveInt = 1
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0


class SftSettings(Section):
    """Supervised fine-tuning. `batch_tokens` counts the tokens of one optimizer step, padding excluded.

    Every `validate_every` steps the loss on held-out demonstrations is taken (of `validation_share` of the companies)
    and the policy is asked `validation_samples` held-out questions, greedily; 0 asks none, and unset asks as many as
    `finqa sft` likes to where the environment has any.
    """

    epochs: Annotated[float, Field(gt=0.0)] = 3.0
    learning_rate: Annotated[float, Field(gt=0.0)] = 5e-6
    batch_tokens: PositiveInt = 8192
    warmup_share: Fraction = 0.03
    validation_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.02
    validate_every: PositiveInt = 200
    validation_samples: NaturalInt | None = None
    minimum_reward: float | None = None


class RunSettings(Section):
    """The run folder; without `dir` it is runs/YYYYMMDD_HHMMSS. `project` is what trackers file the run under."""

    dir: Path | None = None
    project: str = Field(default="finqa", min_length=1)
    save_token_ids: bool = False


class Settings(Section):
    """Everything that a run depends on."""

    environment: Choice = Choice(name="finqa")
    engine: Choice = Choice(name=AUTO)
    sandbox: Choice = Choice(name=AUTO)
    optimizer: Choice = Choice(name="grpo")
    reward: Choice = Choice(name=ENVIRONMENT)
    learner: Choice = Choice(name="torch")
    codec: Choice = Choice(name=AUTO)
    trackers: tuple[Choice, ...] = ()
    pool: PoolSettings = PoolSettings()
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    lora: LoraSettings = LoraSettings()
    generation: GenerationSettings = GenerationSettings()
    train: TrainSettings = TrainSettings()
    eval: EvalSettings = EvalSettings()
    sft: SftSettings = SftSettings()
    run: RunSettings = RunSettings()

    @field_validator("trackers", mode="before")
    @classmethod
    def _names_become_choices(cls, trackers: Any) -> Any:
        if isinstance(trackers, (list, tuple)):
            return tuple({"name": item} if isinstance(item, str) else item for item in trackers)
        return trackers
