"""Times the update of TRL's GRPOTrainer on given completions; prints one line of JSON.

Runs in the environment that `make test-trl` makes, so it imports nothing of finqa:

    python benchmarks/learner/trl_update.py MODEL BATCH [--adapter FOLDER] [--repeats 3] [--threads 1]

MODEL is a folder with a causal language model and its tokenizer. BATCH is a JSON file with `prompts`, lists of ids;
`completions`, lists of ids, as many for each prompt, one prompt after the other; and `rewards`, one for each of them.
ADAPTER is a PEFT adapter to begin from, so that another learner can begin from the same one.

Completions are handed in by `rollout_func`, TRL's own hook for them, so nothing is generated. What is timed is an
update by itself: every forward and backward pass of `training_step`, the clip and the step of AdamW. A first update to
warm up is left out of the times.

Keys: `seconds` and `cpu_seconds`, one for each repeat; `grad_norm` of every update, before the clip, of which the first
meets the weights as given; `loss` of the first, which is 0 but for rounding; `tokens` of an update, prompts included;
`peak_rss_mib` of the process, and `rss_before_mib` when all is ready to train; `threads` and `versions`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

# before TRL is imported: it warns of its hook, and nothing here may reach a hub
os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
import transformers
import trl
from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class TimedTrainer(trl.GRPOTrainer):
    """TRL's trainer, with a clock that starts when the completions are scored.

    Attributes:
        began: Wall and CPU time, in seconds, at which the update in progress began.
    """

    began = (0.0, 0.0)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        scored: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self.began = (time.perf_counter(), time.process_time())
        return scored


class Clock(TrainerCallback):
    """Stops when the optimizer has stepped.

    Attributes:
        seconds: Wall time of each update.
        cpu_seconds: CPU time of each, of all threads.
    """

    def __init__(self) -> None:
        self.trainer: TimedTrainer | None = None
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """An update is done."""
        assert self.trainer is not None
        wall, cpu = self.trainer.began
        self.seconds.append(time.perf_counter() - wall)
        self.cpu_seconds.append(time.process_time() - cpu)


def make_trainer(arguments: argparse.Namespace, batch: dict[str, Any], clock: Clock, scratch: str) -> TimedTrainer:
    """A trainer whose every step is an update on the whole batch."""
    prompts, completions = batch["prompts"], batch["completions"]
    each = len(completions) // len(prompts)
    passes = len(completions) // arguments.rows

    def rollouts(names: list[str], _: Any) -> dict[str, Any]:
        """`names` has each prompt's place once for each of its completions, in order."""
        rows = [int(name) * each + member % each for member, name in enumerate(names)]
        return {
            "prompt_ids": [prompts[int(name)] for name in names],
            "completion_ids": [completions[row] for row in rows],
            "logprobs": [[0.0] * len(completions[row]) for row in rows],  # read for completions by vLLM only
            "graded": [batch["rewards"][row] for row in rows],
        }

    def reward(*, graded: list[float], **_: Any) -> list[float]:
        return graded

    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    lora = None
    if arguments.adapter:
        model = PeftModel.from_pretrained(model, arguments.adapter, is_trainable=True)
    else:
        lora = LoraConfig(r=16, lora_alpha=32, target_modules=PROJECTIONS, task_type="CAUSAL_LM")
    config = trl.GRPOConfig(
        output_dir=scratch,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
        max_steps=arguments.repeats + 1,
        learning_rate=arguments.learning_rate,
        lr_scheduler_type="constant",
        per_device_train_batch_size=arguments.rows,
        gradient_accumulation_steps=passes,
        num_generations=each,
        max_completion_length=max(map(len, completions)),
        temperature=1.0,
        beta=0.0,
        scale_rewards="none",
        shuffle_dataset=False,
        gradient_checkpointing=not arguments.no_checkpointing,
    )
    trainer = TimedTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [str(place) for place in range(len(prompts))]}),
        processing_class=AutoTokenizer.from_pretrained(arguments.model),
        peft_config=lora,
        rollout_func=rollouts,
        callbacks=[clock],
    )
    clock.trainer = trainer
    return trainer


def resident_mib(which: str = "VmRSS") -> float:
    """Memory of this process in RAM; its most so far as `VmHWM`. Measured as `memory.py` does for our side."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(f"{which}:")).split()[1]) / 1024


def main() -> None:
    """Reads the command line, trains, prints."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("batch", type=Path)
    parser.add_argument("--adapter", type=Path, help="PEFT adapter to begin from; else a fresh one of rank 16")
    parser.add_argument("--repeats", type=int, default=3, help="updates that are timed, after one to warm up")
    parser.add_argument("--rows", type=int, default=16, help="completions of a forward pass")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--no-checkpointing", action="store_true", help="keep activations for the backward pass")
    arguments = parser.parse_args()
    batch = json.loads(arguments.batch.read_text())
    if len(batch["completions"]) % arguments.rows or len(batch["completions"]) % len(batch["prompts"]):
        parser.error("completions must be a multiple of --rows and of the prompts")
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    each = len(batch["completions"]) // len(batch["prompts"])
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = make_trainer(arguments, batch, clock, scratch)
        before = resident_mib()
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    steps = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    tokens = sum(map(len, batch["completions"])) + each * sum(map(len, batch["prompts"]))
    found = {
        "seconds": clock.seconds[1:],
        "cpu_seconds": clock.cpu_seconds[1:],
        "grad_norm": [entry["grad_norm"] for entry in steps],
        "loss": steps[0]["loss"],
        "tokens": tokens,
        "peak_rss_mib": resident_mib("VmHWM"),
        "rss_before_mib": before,
        "threads": torch.get_num_threads(),
        "versions": {package.__name__: package.__version__ for package in (torch, transformers, trl)},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
