"""Runs TRL's own trainers on recorded batches; argv[1] is a folder with `jobs.json`, and gets the answers.

Runs in TRL's environment, so it imports nothing of finqa. Nothing of TRL's arithmetic is repeated here: rewards become
advantages in `_generate_and_score_completions`, pairs are collated by TRL's collator, and the loss is that of
`compute_loss`. What is handed in is what rollouts would bring: token ids, masks and log-probabilities.

Written are, by job, the loss and the advantages that rewards became (`answers.json`) and the gradients of all trained
weights, flat, in the order of the model's parameters (`gradients.safetensors`).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# before TRL is imported: it warns of the hook that takes rollouts, and nothing here may reach a hub
os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
import trl
from datasets import Dataset
from peft import LoraConfig, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.utils import pad

Job = dict[str, Any]
PAIR = {"prompt": ["a"], "chosen": ["b"], "rejected": ["c"]}


class GivenRLOOTrainer(trl.RLOOTrainer):
    """RLOO has no hook for rollouts, so its generation is replaced; what follows it is TRL's."""

    job: Job

    def _generate(self, prompts: list[str]) -> tuple[list[list[int]], list[list[int]], list[str]]:
        return prompt_ids(self.job), self.job["completions"], prompts


def prompt_ids(job: Job) -> list[list[int]]:
    """One row for each completion."""
    return [prompt for prompt in job["prompts"] for _ in range(members(job))]


def members(job: Job) -> int:
    """Completions of a prompt."""
    return len(job["completions"]) // len(job["prompts"])


def rollouts(job: Job) -> dict[str, Any]:
    """What TRL's hook is to return."""
    return {
        "prompt_ids": prompt_ids(job),
        "completion_ids": job["completions"],
        "logprobs": job["logprobs"],
        "env_mask": job["masks"],
    }


def common(job: Job, scratch: str) -> dict[str, Any]:
    """Settings of every trainer: float32 on the CPU, one accumulation step."""
    return {"output_dir": scratch, "use_cpu": True, "bf16": False, "report_to": [], "learning_rate": 0.0} | job[
        "config"
    ]


def of_rollouts(job: Job, scratch: str) -> dict[str, Any]:
    """Settings by which all completions are one batch."""
    rows = len(job["completions"])
    sizes = {"per_device_train_batch_size": rows, "num_generations": members(job), "gradient_accumulation_steps": 1}
    return common(job, scratch) | sizes


def grouped_inputs(trainer: Any, job: Job) -> dict[str, Any]:
    """The batch as TRL's trainers of groups prepare it."""
    trainer.current_gradient_accumulation_steps = 1
    prepared: dict[str, Any] = trainer._generate_and_score_completions([{"prompt": "?"} for _ in job["completions"]])
    return prepared


def grpo(job: Job, parts: dict[str, Any], scratch: str) -> tuple[Any, dict[str, Any]]:
    """A trainer and its inputs. With `old`, steps are clipped around the log-probabilities of the job; with
    `importance_sampling`, these are a sampler's that TRL corrects for, as it does for vLLM's.
    """
    trainer = trl.GRPOTrainer(
        reward_funcs=lambda **_: job["rewards"],
        args=trl.GRPOConfig(**of_rollouts(job, scratch)),
        train_dataset=Dataset.from_dict({"prompt": ["?"] * len(job["prompts"])}),
        rollout_func=lambda *_: rollouts(job),
        **parts,
    )
    load_adapter(trainer)
    if job.get("importance_sampling"):
        trainer.use_vllm, trainer._last_loaded_step = True, trainer.state.global_step
    inputs = grouped_inputs(trainer, job)
    if job.get("old"):
        rows = [torch.tensor(row) for row in job["logprobs"]]
        inputs["old_per_token_logps"] = pad(rows, padding_value=0.0, padding_side="right")
    return trainer, inputs


def rloo(job: Job, parts: dict[str, Any], scratch: str) -> tuple[Any, dict[str, Any]]:
    """A trainer and its inputs; with `old`, clipped around the log-probabilities of the job."""
    trainer = GivenRLOOTrainer(
        reward_funcs=lambda **_: job["rewards"],
        args=trl.RLOOConfig(**of_rollouts(job, scratch)),
        train_dataset=Dataset.from_dict({"prompt": ["?"] * len(job["prompts"])}),
        **parts,
    )
    load_adapter(trainer)
    trainer.job = job
    inputs = grouped_inputs(trainer, job)
    if job.get("old"):
        inputs["old_logps"] = torch.tensor([sum(row) for row in job["logprobs"]])
    return trainer, inputs


def dpo(job: Job, parts: dict[str, Any], scratch: str) -> tuple[Any, dict[str, Any]]:
    """A trainer and its inputs; with `reference_free`, the reference finds every attempt equally likely."""
    trainer = trl.DPOTrainer(
        args=trl.DPOConfig(max_length=None, **common(job, scratch)), train_dataset=Dataset.from_dict(PAIR), **parts
    )
    load_adapter(trainer)
    inputs = trainer.data_collator(job["pairs"])
    if job.get("reference_free"):
        nothing = torch.zeros(len(job["pairs"]))
        trainer.precompute_ref_logps = True
        inputs |= {"ref_chosen_logps": nothing, "ref_rejected_logps": nothing}
    return trainer, inputs


def load_adapter(trainer: Any) -> None:
    """After the trainer is made: an adapter that is there before would become TRL's reference."""
    found = set_peft_model_state_dict(trainer.model, load_file(ADAPTER / "adapter_model.safetensors"))
    assert not found.unexpected_keys
    trainer.model.train()


def answer(job: Job, model: str, lora: dict[str, Any]) -> tuple[dict[str, Any], torch.Tensor]:
    """Loss and advantages, and the flat gradient."""
    parts = {
        "model": AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        "processing_class": AutoTokenizer.from_pretrained(model),
        "peft_config": LoraConfig(**lora),
    }
    with tempfile.TemporaryDirectory() as scratch:
        trainer, inputs = {"grpo": grpo, "rloo": rloo, "dpo": dpo}[job["trainer"]](job, parts, scratch)
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
    trained = [part for part in trainer.model.parameters() if part.requires_grad]
    found = {"loss": float(loss.detach())}
    if "advantages" in inputs:
        found["advantages"] = inputs["advantages"].tolist()
    return found, torch.cat([part.grad.flatten() for part in trained])


if __name__ == "__main__":
    torch.set_num_threads(1)
    FOLDER = Path(sys.argv[1])
    asked = json.loads((FOLDER / "jobs.json").read_text())
    ADAPTER = Path(asked["adapter"])
    answers = {name: answer(job, asked["model"], asked["lora"]) for name, job in asked["jobs"].items()}
    (FOLDER / "answers.json").write_text(json.dumps({name: found for name, (found, _) in answers.items()}))
    save_file({name: gradient for name, (_, gradient) in answers.items()}, FOLDER / "gradients.safetensors")
