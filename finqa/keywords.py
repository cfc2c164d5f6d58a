"""Keywords of the functions: the flags of their commands. Written by `make reference`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict


class EvaluateKeywords(TypedDict, total=False):
    """Flags of `finqa eval`."""

    environment: str | None
    hints: bool | None
    grader: str | None
    dataset_limit: int | None
    max_attempts: int | None
    engine: str | None
    sandbox: str | None
    dangerously_run_unisolated: bool | None
    reward: str | None
    sandboxes: int | None
    sessions_per_sandbox: int | None
    max_concurrent_create: int | None
    max_concurrent_play: int | None
    max_play_retries: int | None
    snapshot: str | None
    data: str | Path | None
    max_steps: int | None
    max_gen_tokens: int | None
    engine_replicas: int | None
    run_dir: str | Path | None
    seed: int | None
    max_cost: float | None
    max_tokens: int | None
    max_time: float | None
    tags: str | Sequence[str] | None
    max_episode_tokens: int | None
    max_episode_cost: float | None
    limit: int | None
    attempts: int | None
    ids: str | Sequence[str] | None
    kind: str | Sequence[str] | None
    company: str | Sequence[str] | None
    range: str | None
    temperature: float | None
    split: str | None
    save_token_ids: bool | None


class TrainKeywords(TypedDict, total=False):
    """Flags of `finqa train`."""

    environment: str | None
    hints: bool | None
    grader: str | None
    dataset_limit: int | None
    max_attempts: int | None
    engine: str | None
    sandbox: str | None
    dangerously_run_unisolated: bool | None
    reward: str | None
    optimizer: str | None
    sandboxes: int | None
    sessions_per_sandbox: int | None
    max_concurrent_create: int | None
    max_concurrent_play: int | None
    max_play_retries: int | None
    snapshot: str | None
    data: str | Path | None
    dataset_split: str | None
    split: str | None
    allow_evaluation_data: bool | None
    allow_overlap: bool | None
    model: str | None
    tensor_parallel_size: int | None
    gpu_memory_utilization: float | None
    max_model_len: int | None
    sleep: bool | None
    lora_rank: int | None
    lora_alpha: int | None
    lora_dropout: float | None
    lora_target_modules: str | Sequence[str] | None
    max_gen_tokens: int | None
    temperature: float | None
    max_steps: int | None
    max_episode_tokens: int | None
    max_episode_cost: float | None
    rollout_dispatch_wait_ms: int | None
    engine_replicas: int | None
    iterations: int | None
    num_steps: int | None
    group_size: int | None
    num_generations: int | None
    target_groups_per_iter: int | None
    batch_size: int | None
    max_rollout_rounds: int | None
    lr: float | None
    learning_rate: float | None
    grpo_update_batch_size: int | None
    gradient_checkpointing: bool | None
    learner_processes: int | str | None
    sync_every: int | None
    max_staleness: int | None
    off_policy: str | None
    preflight: bool | None
    shuffle_rewards: bool | None
    seed: int | None
    limit: int | None
    run_dir: str | Path | None
    tags: str | Sequence[str] | None
    project: str | None
    save_token_ids: bool | None
    run_mirror: str | None
    max_cost: float | None
    max_tokens: int | None
    max_time: float | None
    cluster_address: str | None
    tracker: str | Sequence[str] | None


class SampleKeywords(TypedDict, total=False):
    """Flags of `finqa sample`."""

    environment: str | None
    hints: bool | None
    grader: str | None
    dataset_limit: int | None
    max_attempts: int | None
    engine: str | None
    sandbox: str | None
    dangerously_run_unisolated: bool | None
    reward: str | None
    sandboxes: int | None
    sessions_per_sandbox: int | None
    max_concurrent_create: int | None
    max_concurrent_play: int | None
    max_play_retries: int | None
    snapshot: str | None
    data: str | Path | None
    max_steps: int | None
    max_gen_tokens: int | None
    engine_replicas: int | None
    run_dir: str | Path | None
    seed: int | None
    max_cost: float | None
    max_tokens: int | None
    max_time: float | None
    tags: str | Sequence[str] | None
    max_episode_tokens: int | None
    max_episode_cost: float | None
