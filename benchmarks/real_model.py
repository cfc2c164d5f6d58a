"""A real language model: an update beside PEFT with PyTorch, and rollouts beside `generate` and vLLM, on the CPU.

    python -m benchmarks.real_model [--part update|rollouts] [--dtype float32|bfloat16] [--threads N] [--repeats N]
        [--vllm-python PYTHON]

Needs `finqa model get smollm2-135m-instruct`, or another instruct model by --model. Both sides have the same weights,
tokens, precision and threads, and take turns, each in a process of its own. The update is one LoRA step (rank 16) on
demonstrations that share openings in pairs, in micro-batches of two; neither side recomputes activations. Rollouts are
8 attempts at each of 8 questions with a long system text; with the Python of a CPU build of vLLM, vLLM takes part.
Prints a markdown table and, as the last line, the same as
JSON; the exit status is 1 when a figure fails. `--quick` is for a look: too small for its figures to be judged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, at_least, at_most, machine, note, report, without_times

FASTER, LESS_MEMORY, SAME_LOSS, AS_MANY = 1.5, 0.8, 1e-3, 1.0
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
OURS, THEIRS = "finqa", "PEFT + PyTorch"
ENGINE, GENERATE, VLLM = "finqa", "generate", "vLLM"
SYSTEM = (
    "You answer questions about the annual reports of companies. Read the question, find the figures that it needs, "
    "write the calculation in one line, and give the result with its unit. Say so if a figure is missing. "
) * 6
COMPANIES = ("Ayla", "Borealis", "Corvid", "Delphi", "Ember", "Fathom", "Grove", "Halcyon")
REPLY = (
    "Revenue was 1,234.5 in 2023 and 1,184.7 in 2022, so it grew by 1,234.5 / 1,184.7 - 1 = 4.2 %. Operating income "
    "was 98.1, a margin of 98.1 / 1,234.5 = 7.9 %. "
) * 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One measurement in one process.

    Attributes:
        who: The side.
        part: `update` or `rollouts`.
        model: Folder of the model.
        dtype: Precision.
        count: Demonstrations of an update, or attempts at each question.
        sampled: Tokens of a reply of rollouts.
        repeats: Times that are measured, after one to warm up.
    """

    who: str
    part: str
    model: str
    dtype: str
    count: int
    sampled: int
    repeats: int


def main() -> int:
    """Parse the arguments, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("update", "rollouts"))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vllm-python", default="", help="Python with vLLM, such as that of `finqa setup vllm`")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(run(Job(**json.loads(given.child)))))
        return 0
    from finqa_cli.wiring.policies import resolve

    model = resolve(given.model).model
    parts: dict[str, list[Figure]] = {}
    if given.part in (None, "update"):
        parts["update"] = update_figures(model, given)
    if given.part in (None, "rollouts"):
        parts["rollouts"] = rollout_figures(model, given)
    shown = {part: without_times(figures) if given.quick else figures for part, figures in parts.items()}
    facts = {**machine(), "model": given.model, "dtype": given.dtype, "threads": given.threads}
    return report(shown, facts)


def update_figures(model: str, given: argparse.Namespace) -> list[Figure]:
    """Speed and memory of both sides, and whether they took the same step."""
    count = 2 if given.quick else 8
    job = Job(who="", part="update", model=model, dtype=given.dtype, count=count, sampled=0, repeats=given.repeats)
    found = in_turns(job, (OURS, THEIRS), given)
    ours, theirs = found[OURS], found[THEIRS]
    faster = middle(theirs, "seconds") / middle(ours, "seconds")
    memory = max(run["peak_mib"] for run in ours) / min(run["peak_mib"] for run in theirs)
    loss = abs(ours[0]["loss"] / theirs[0]["loss"] - 1)
    exact = 1 if given.dtype == "float32" else 20  # bfloat16 keeps 8 bits, and the sides sum in another order
    return [
        at_least("times the speed of PEFT + PyTorch", faster, FASTER, "medians of wall seconds", timed=True),
        at_most("share of its memory", memory, LESS_MEMORY, "largest resident size", timed=True),
        at_most("relative difference of the loss", loss, exact * SAME_LOSS),
        *(note(f"{who}: tokens a second", runs[0]["tokens"] / middle(runs, "seconds")) for who, runs in found.items()),
        *(
            note(f"{who}: norm of the gradient", runs[0]["grad_norm"], "random first factors")
            for who, runs in found.items()
        ),
        *(note(f"{who}: CPU seconds", middle(runs, "cpu_seconds")) for who, runs in found.items()),
        *(note(f"{who}: MiB", max(run["peak_mib"] for run in runs)) for who, runs in found.items()),
    ]


def rollout_figures(model: str, given: argparse.Namespace) -> list[Figure]:
    """Sampled tokens a second of both sides."""
    sampled = 16 if given.quick else 96
    job = Job(who="", part="rollouts", model=model, dtype=given.dtype, count=8, sampled=sampled, repeats=given.repeats)
    others = (GENERATE, VLLM) if given.vllm_python else (GENERATE,)
    found = in_turns(job, (ENGINE, *others), given)
    speed = {who: statistics.median(rate for run in runs for rate in run["rates"]) for who, runs in found.items()}
    return [
        *(
            at_least(f"times the tokens a second of {who}", speed[ENGINE] / speed[who], AS_MANY, "", timed=True)
            for who in others
        ),
        *(note(f"{who}: sampled tokens a second", rate) for who, rate in speed.items()),
        *(note(f"{who}: MiB", max(run["peak_mib"] for run in runs)) for who, runs in found.items()),
    ]


def in_turns(job: Job, sides: Sequence[str], given: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Two processes of each side, one after another, so that a change of the machine's load meets both."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    environment = {**os.environ, "OMP_NUM_THREADS": str(given.threads), "HF_HUB_OFFLINE": "1"}
    for _ in range(1 if given.quick else 2):
        for side in sides:
            child = json.dumps({**asdict(job), "who": side, "repeats": 1 if given.quick else job.repeats})
            command, sent = [sys.executable, "-m", "benchmarks.real_model", "--child", child], ""
            if side == VLLM:
                command, sent = [given.vllm_python, "benchmarks/vllm_rollouts.py"], _for_vllm(job, json.loads(child))
            ended = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, env=environment, input=sent or None
            )
            found[side].append(json.loads(ended.stdout.strip().splitlines()[-1]))
    return found


def _for_vllm(job: Job, child: dict[str, Any]) -> str:
    from transformers import AutoTokenizer

    return json.dumps({**child, "prompts": openings(AutoTokenizer.from_pretrained(job.model))})


def middle(runs: Sequence[dict[str, Any]], key: str) -> float:
    """The median over all repeats of all processes."""
    return statistics.median(second for run in runs for second in run[key])


def run(job: Job) -> dict[str, Any]:
    """Measure one side in this process."""
    import torch
    from transformers import AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    if job.part == "rollouts":
        return sample_attempts(job, tokenizer)
    step, tokens = our_step(job, tokenizer) if job.who == OURS else their_step(job, tokenizer)
    loss, norm = step()
    Path("/proc/self/clear_refs").write_text("5")  # the peak of loading the model does not count
    seconds, cpu_seconds = [], []
    for _ in range(job.repeats):
        began, cpu_began = time.perf_counter(), time.process_time()
        step()
        seconds.append(time.perf_counter() - began)
        cpu_seconds.append(time.process_time() - cpu_began)
    times = {"seconds": seconds, "cpu_seconds": cpu_seconds, "tokens": tokens}
    return {"loss": loss, "grad_norm": norm, "peak_mib": peak_mib(), **times}


def peak_mib() -> float:
    """The largest resident size since it was reset."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


def openings(tokenizer: Any) -> list[list[int]]:
    """Eight questions about companies, with one system text."""
    return [
        tokenizer.apply_chat_template(
            [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"How did the revenue and margin of {company} develop in 2023?"},
            ],
            add_generation_prompt=True,
            return_dict=False,
        )
        for company in COMPANIES
    ]


def demonstrations(job: Job, tokenizer: Any) -> list[tuple[list[int], int]]:
    """Ids, and where the reply begins; each question has two replies."""
    replies = [tokenizer(f"{company}: {REPLY}").input_ids for company in COMPANIES[: job.count]]
    questions = openings(tokenizer)
    return [([*questions[place // 2], *reply], len(questions[place // 2])) for place, reply in enumerate(replies)]


def our_step(job: Job, tokenizer: Any) -> tuple[Any, int]:
    """An update of the learner, and the tokens of its demonstrations."""
    from finqa_cli.algorithms.losses import CrossEntropyLoss
    from finqa_cli.algorithms.packing import pack
    from finqa_cli.contracts import LearnerContext
    from finqa_cli.types import Sample
    from finqa_plugins.learners.torch.config import TorchLearnerConfig
    from finqa_plugins.learners.torch.torch_learner import TorchLearner

    samples = []
    for ids, begin in demonstrations(job, tokenizer):
        mask = tuple(place >= begin for place in range(len(ids)))
        zeros = (0.0,) * len(ids)
        ones = tuple(float(masked) for masked in mask)
        samples.append(Sample(token_ids=tuple(ids), loss_mask=mask, logprobs=zeros, advantages=ones))
    config = TorchLearnerConfig.model_validate({"device": "cpu", "dtype": job.dtype})
    context = LearnerContext(
        model=job.model, learning_rate=0.0, lora_target_modules=TARGETS, gradient_checkpointing=False, max_grad_norm=0.0
    )
    learner = TorchLearner(config, context)
    learner.start()
    longest = max(len(sample.token_ids) for sample in samples)
    batch = pack(samples, token_budget=2 * longest, max_rows=2, padded=not learner.packs())

    def step() -> tuple[float, float]:
        done = learner.update(batch, CrossEntropyLoss())
        return done.loss, done.grad_norm

    return step, sum(len(sample.token_ids) for sample in samples)


def their_step(job: Job, tokenizer: Any) -> tuple[Any, int]:
    """The same by PEFT, AdamW and the loss of transformers, in padded micro-batches of two."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, job.dtype)
    base = AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype)
    options = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=list(TARGETS))
    model = get_peft_model(base, options).train()
    trained = [part for part in model.parameters() if part.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0)
    rows = demonstrations(job, tokenizer)
    counted = sum(len(ids) - begin for ids, begin in rows)

    def step() -> tuple[float, float]:
        total = 0.0
        for place in range(0, len(rows), 2):
            pair = rows[place : place + 2]
            width = max(len(ids) for ids, _ in pair)
            ids = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids, _ in pair])
            seen = torch.tensor([[*[1] * len(ids), *[0] * (width - len(ids))] for ids, _ in pair])
            labels = ids.masked_fill(seen == 0, -100)
            for row, (_, begin) in enumerate(pair):
                labels[row, :begin] = -100
            loss = model(input_ids=ids, attention_mask=seen, labels=labels, num_items_in_batch=counted).loss
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(trained, float("inf")).item()
        optimizer.step()
        optimizer.zero_grad()
        return total, norm

    return step, sum(len(ids) for ids, _ in rows)


def sample_attempts(job: Job, tokenizer: Any) -> dict[str, Any]:
    """Sampled tokens a second of one side: every attempt has the full length on both."""
    measured = our_rollouts(job, tokenizer) if job.who == ENGINE else their_rollouts(job, tokenizer)
    return {"rates": measured, "peak_mib": peak_mib()}


def our_rollouts(job: Job, tokenizer: Any) -> list[float]:
    """All attempts as requests of the engine at once."""
    from finqa_cli.contracts import EngineContext
    from finqa_cli.types import GenerateRequest, Sampling
    from finqa_plugins.engines.transformers.config import TransformersEngineConfig
    from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine

    config = TransformersEngineConfig.model_validate({"device": "cpu", "dtype": job.dtype})

    async def play() -> list[float]:
        engine = TransformersEngine(config, EngineContext(model=job.model, dispatch_wait_ms=50))
        await engine.start()
        rates = []
        for repeat in range(job.repeats + 1):
            requests = [
                GenerateRequest(
                    key=f"{repeat}-{question}-{member}#0",
                    token_ids=tuple(ids),
                    sampling=Sampling(max_tokens=job.sampled, seed=repeat * 64 + question * 8 + member),
                )
                for question, ids in enumerate(openings(tokenizer))
                for member in range(job.count)
            ]
            began = time.perf_counter()
            done = await asyncio.gather(*map(engine.generate, requests))
            rates.append(sum(len(one.token_ids) for one in done) / (time.perf_counter() - began))
        await engine.close()
        return rates[1:]

    return asyncio.run(play())


def their_rollouts(job: Job, tokenizer: Any) -> list[float]:
    """All attempts as one left-padded batch of `generate`."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=getattr(torch, job.dtype)).eval()
    questions = openings(tokenizer)
    width = max(map(len, questions))
    ids = torch.tensor([[*[0] * (width - len(one)), *one] for one in questions])
    seen = torch.tensor([[*[0] * (width - len(one)), *[1] * len(one)] for one in questions])
    rates = []
    for _ in range(job.repeats + 1):
        began = time.perf_counter()
        with torch.inference_mode():
            made = model.generate(
                input_ids=ids,
                attention_mask=seen,
                do_sample=True,
                top_k=0,
                num_return_sequences=job.count,
                max_new_tokens=job.sampled,
                min_new_tokens=job.sampled,
            )
        rates.append(made.shape[0] * (made.shape[1] - width) / (time.perf_counter() - began))
    return rates[1:]


if __name__ == "__main__":
    sys.exit(main())
