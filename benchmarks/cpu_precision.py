"""A real language model on CPU cores: updates in float32 and bfloat16, with and without gradient checkpointing.

    finqa eval scripted --split train --limit 40 --run-dir runs/demos
    python -m benchmarks.cpu_precision MODEL runs/demos --threads 1

Each form is a process of its own, so that its peak memory is its own. A step is SFT on two whole demonstrations. The
first step of each form starts from the same weights and the same adapter: its loss and gradient are compared with those
of float32 without checkpointing. Speed is tokens per CPU-second of the later steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, at_least, at_most, machine, note, report

PER_STEP = 2
"""Demonstrations of a step."""
COSINE = 0.995
"""Least cosine between the gradients of the two types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a step is computed."""

    dtype: str
    checkpointing: bool
    rank: int

    @property
    def name(self) -> str:
        """Its name in the table."""
        weights = f"LoRA r{self.rank}" if self.rank else "all weights"
        return f"{weights}, {self.dtype}, {'checkpointing' if self.checkpointing else 'activations kept'}"


def measure(
    form: Form, model: str, demonstrations: Path, *, steps: int, threads: int, gradient: Path
) -> dict[str, Any]:
    """Runs the steps in this process; writes the gradient of the first one as one float32 vector."""
    import torch

    from benchmarks.learner.memory import resident_mib
    from finqa_cli.algorithms.losses import CrossEntropyLoss
    from finqa_cli.algorithms.packing import pack
    from finqa_cli.contracts import LearnerContext
    from finqa_cli.wiring.command_settings import read_layers
    from finqa_plugins.learners.torch.config import TorchLearnerConfig
    from finqa_plugins.learners.torch.torch_learner import TorchLearner

    samples = _samples(read_layers(flags={"model.name": model}).settings, demonstrations)[: steps * PER_STEP]
    context = LearnerContext(
        model=model,
        learning_rate=2e-4 if form.rank else 1e-5,
        lora_rank=form.rank,
        gradient_checkpointing=form.checkpointing,
    )
    config: dict[str, Any] = {"device": "cpu", "dtype": form.dtype, "threads": threads}
    learner = TorchLearner(TorchLearnerConfig(**config), context)
    learner.start()
    clip = learner._clip

    def keep() -> float:
        if not gradient.exists():
            parts = [part.grad.float().flatten() for part in learner._trained.values() if part.grad is not None]
            torch.save(torch.cat(parts), gradient)
        return clip()

    learner._clip = keep  # type: ignore[method-assign]
    losses, speeds, tokens = [], [], 0
    loaded = resident_mib()
    for step in range(steps):
        chosen = samples[step * PER_STEP : (step + 1) * PER_STEP]
        tokens = sum(len(sample.token_ids) for sample in chosen)
        began = time.process_time()
        done = learner.update(pack(chosen, token_budget=16_384, max_rows=PER_STEP), CrossEntropyLoss())
        speeds.append(tokens / (time.process_time() - began))
        losses.append(done.loss)
    return {
        "losses": losses,
        "speed": statistics.median(speeds[1:] or speeds),
        "loaded_mib": loaded,
        "peak_mib": resident_mib("VmHWM"),
        "tokens": tokens,
    }


def _samples(settings: Any, demonstrations: Path) -> list[Any]:
    from finqa_cli.training.sft.sft_run import choose_demonstrations, imitation_set
    from finqa_cli.wiring.build import make_codec

    found = choose_demonstrations(settings, [demonstrations], most=0)
    return list(imitation_set(found, settings, make_codec(settings, settings.model.name)).train)


def compare(forms: list[Form], arguments: argparse.Namespace, folder: Path) -> dict[str, list[Figure]]:
    """Measures every form in a process of its own."""
    import torch

    parts: dict[str, list[Figure]] = {}
    exact: dict[int, tuple[dict[str, Any], torch.Tensor]] = {}
    for number, form in enumerate(forms):
        gradient = folder / f"gradient_{number}.pt"
        command = [sys.executable, "-m", "benchmarks.cpu_precision", arguments.model, str(arguments.demonstrations)]
        command += ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
        command += ["--form", json.dumps(asdict(form)), "--gradient", str(gradient)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
        text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        found, vector = json.loads(text.splitlines()[-1]), torch.load(gradient)
        reference, whole = exact.setdefault(form.rank, (found, vector))
        cosine = float(torch.nn.functional.cosine_similarity(vector.double(), whole.double(), dim=0))
        apart = abs(found["losses"][0] - reference["losses"][0])
        ratio = found["speed"] / reference["speed"]
        print(form.name, json.dumps(found), f"cosine {cosine:.6f}", file=sys.stderr, flush=True)
        parts[form.name] = [
            note("tokens per CPU-second", found["speed"], f"{ratio:.2f} times float32 with activations kept"),
            note("peak MiB", found["peak_mib"], f"{found['loaded_mib']:.0f} after loading"),
            at_most("loss apart, nats a token", apart, 0.01, f"losses {[round(x, 4) for x in found['losses']]}"),
            at_least("cosine of the gradients", cosine, COSINE),
            note("gradient norm, ratio", float(vector.double().norm() / whole.double().norm())),
        ]
    return parts


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("demonstrations", type=Path)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="*", default=[16, 0])
    parser.add_argument("--form", help=argparse.SUPPRESS)
    parser.add_argument("--gradient", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.form:
        form = Form(**json.loads(arguments.form))
        print(
            json.dumps(
                measure(
                    form,
                    arguments.model,
                    arguments.demonstrations,
                    steps=arguments.steps,
                    threads=arguments.threads,
                    gradient=arguments.gradient,
                )
            )
        )
        return 0
    import tempfile

    forms = [
        Form(dtype=dtype, checkpointing=checkpointing, rank=rank)
        for rank in arguments.ranks
        for dtype in ("float32", "bfloat16")
        for checkpointing in (False, True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        return report(compare(forms, arguments, Path(folder)), machine())


if __name__ == "__main__":
    sys.exit(main())
