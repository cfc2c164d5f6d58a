"""How long the transformers engine takes for one iteration's episodes, with and without reuse of keys and values.

A random Qwen3 of the shape of the embedded policy plays episodes of several turns: prompts of a group are equal, all
share the system text, every turn appends the completion and a tool reply. No tokenizer, no tools, no learner.

Run: OMP_NUM_THREADS=1 python benchmarks/transformers_engine.py [--episodes 96] [--turns 4] [--no-reuse] [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import random
import tempfile
import time
from pathlib import Path

from finqa_cli.contracts import EngineContext
from finqa_cli.types import GenerateRequest, Sampling
from finqa_plugins.transformers_engine.config import TransformersEngineConfig
from finqa_plugins.transformers_engine.engine import TransformersEngine

SYSTEM_TOKENS = 290
QUESTION_TOKENS = (40, 80)
REPLY_TOKENS = (20, 90)
COMPLETION_TOKENS = (20, 40)


def make_model(folder: Path, *, vocabulary: int, hidden: int, layers: int) -> None:
    """Saves a random model; an empty tokenizer file satisfies the folder check."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=max(1, hidden // 64),
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")


async def play(engine: TransformersEngine, arguments: argparse.Namespace) -> tuple[int, float, float]:
    """One iteration; returns generated tokens, seconds and CPU seconds."""
    system = [random.Random(0).randrange(arguments.vocabulary) for _ in range(SYSTEM_TOKENS)]

    async def episode(index: int) -> int:
        question = random.Random(1000 + index // arguments.group)
        ids = system + [question.randrange(arguments.vocabulary) for _ in range(question.randint(*QUESTION_TOKENS))]
        own = random.Random(index)
        generated = 0
        with engine.seat():
            for turn in range(arguments.turns):
                sampling = Sampling(max_tokens=own.randint(*COMPLETION_TOKENS), seed=index * 100 + turn)
                request = GenerateRequest(key=f"{index:04}#{turn}", token_ids=tuple(ids), sampling=sampling)
                completion = await engine.generate(request)
                generated += len(completion.token_ids)
                ids += completion.token_ids
                ids += [own.randrange(arguments.vocabulary) for _ in range(own.randint(*REPLY_TOKENS))]
        return generated

    begin, cpu = time.perf_counter(), time.process_time()
    tokens = sum(await asyncio.gather(*(episode(index) for index in range(arguments.episodes))))
    return tokens, time.perf_counter() - begin, time.process_time() - cpu


async def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("episodes", 96), ("turns", 4), ("group", 8), ("hidden", 128), ("layers", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--vocabulary", type=int, default=1200)
    parser.add_argument("--max-batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-reuse", action="store_true", help="recompute every prompt in full")
    parser.add_argument("--profile", action="store_true", help="print where the worker thread spends its time")
    arguments = parser.parse_args()
    config = TransformersEngineConfig(
        max_batch=arguments.max_batch, kv_cache_gb=0 if arguments.no_reuse else None, threads=1
    )
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), vocabulary=arguments.vocabulary, hidden=arguments.hidden, layers=arguments.layers)
        engine = TransformersEngine(config, EngineContext(model=folder))
        await engine.start()
        profiler = cProfile.Profile()
        if arguments.profile:
            await engine._in_worker(profiler.enable)
        runs = [await play(engine, arguments) for _ in range(arguments.repeats)]
        if arguments.profile:
            await engine._in_worker(profiler.disable)
        await engine.close()
    tokens, seconds, _ = min(runs, key=lambda run: run[1])
    print(
        json.dumps(
            {
                "reuse": not arguments.no_reuse,
                "episodes": arguments.episodes,
                "turns": arguments.turns,
                "generated_tokens": tokens,
                "seconds": [round(run[1], 3) for run in runs],
                "cpu_seconds": [round(run[2], 3) for run in runs],
                "tokens_per_second": round(tokens / seconds),
            }
        )
    )
    if arguments.profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    asyncio.run(main())
