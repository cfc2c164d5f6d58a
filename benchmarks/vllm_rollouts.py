"""Sampled tokens a second of vLLM itself, for `benchmarks.real_model`; runs with the Python that has vLLM.

Reads one line of JSON from the standard input (`model`, `dtype`, `prompts` of token ids, `count` attempts each,
`sampled` tokens of an attempt, `repeats`), and prints the rates, after one round to warm up, and the largest resident
size as the last line. It imports nothing of finqa, which that Python does not have.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Sample and print."""
    job = json.loads(sys.stdin.readline())
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    vllm: Any = __import__("vllm")  # the type checker's Python does not have it
    longest = max(map(len, job["prompts"])) + job["sampled"]
    engine = vllm.LLM(
        job["model"], dtype=job["dtype"], max_model_len=longest + 8, max_num_seqs=len(job["prompts"]) * job["count"]
    )
    length = job["sampled"]
    sampling = vllm.SamplingParams(n=job["count"], max_tokens=length, min_tokens=length, ignore_eos=True, seed=0)
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    rates = []
    for _ in range(job["repeats"] + 1):
        began = time.perf_counter()
        done = engine.generate(prompts, sampling, use_tqdm=False)
        tokens = sum(len(attempt.token_ids) for request in done for attempt in request.outputs)
        rates.append(tokens / (time.perf_counter() - began))
    status = Path("/proc/self/status").read_text()
    peak = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024
    print("\n" + json.dumps({"rates": rates[1:], "peak_mib": peak}))


if __name__ == "__main__":
    main()
