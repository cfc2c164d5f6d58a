"""The published form of an update: each turn of an episode is a training sequence of its own, with its whole prompt.

Follows `grpo_update` of Daytona's guide "FinQA evaluation and training on sandboxes" (github.com/daytonaio/daytona,
guides/python/reinforcement-learning/openenv/train.py, commit 7094b0f), written again after it: turns are sorted by
length and cut into micro-batches of 12; each is padded on the right, with an attention mask; the whole model gives
logits for the full vocabulary at every position; those that predict the completion are picked out of them. The loss is
-(advantage x log-probability), meaned over the tokens of an episode and then over episodes; gradients are clipped to
norm 1 and AdamW steps. As there: PEFT's LoRA of rank 16 on transformers' model, with gradient checkpointing.

One difference: prompts here are the exact ids of the episode so far, where the guide renders the history again through
the chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.learner.jobs import LEARNING_RATE
from benchmarks.learner.models import MAX_GRAD_NORM
from benchmarks.learner.shapes import turns_of
from finqa_cli.types import Sample

_IGNORED = -100


@dataclass(frozen=True, slots=True)
class TurnSequence:
    """One turn as it is used for training.

    Attributes:
        ids: Prompt and completion.
        prompt: Length of the prompt.
        advantage: Of the episode.
        scale: 1 / (episodes x sampled tokens of the episode).
    """

    ids: tuple[int, ...]
    prompt: int
    advantage: float
    scale: float


class PerTurnUpdate:
    """A model with its adapter and optimizer."""

    def __init__(self, start: Path, *, checkpointing: bool) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(start / "model", dtype=torch.float32)
        model: Any = PeftModel.from_pretrained(base, str(start / "adapter"), is_trainable=True)
        model.enable_input_require_grads()
        model.config.use_cache = False
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train()
        self._model = model
        self._optimizer = torch.optim.AdamW(
            [part for part in model.parameters() if part.requires_grad], lr=LEARNING_RATE
        )

    def accumulate(self, samples: Sequence[Sample], rows: int) -> float:
        """Forward and backward passes of an update; returns the loss."""
        self._optimizer.zero_grad(set_to_none=True)
        turns = sorted(turn_sequences(samples), key=lambda turn: len(turn.ids))
        loss = 0.0
        for start in range(0, len(turns), rows):
            part = self._loss(turns[start : start + rows])
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
        return loss

    def step(self) -> float:
        """Clips the gradient and takes the step; returns the norm before the clip."""
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm=MAX_GRAD_NORM)
        self._optimizer.step()
        return float(norm)

    def _loss(self, turns: Sequence[TurnSequence]) -> torch.Tensor:
        width = max(len(turn.ids) for turn in turns)
        longest = max(len(turn.ids) - turn.prompt for turn in turns)
        token_ids = torch.zeros((len(turns), width), dtype=torch.long)
        attention = torch.zeros((len(turns), width), dtype=torch.long)
        targets = torch.full((len(turns), longest), _IGNORED, dtype=torch.long)
        for row, turn in enumerate(turns):
            token_ids[row, : len(turn.ids)] = torch.tensor(turn.ids)
            attention[row, : len(turn.ids)] = 1
            targets[row, : len(turn.ids) - turn.prompt] = torch.tensor(turn.ids[turn.prompt :])
        logits = self._model(input_ids=token_ids, attention_mask=attention).logits
        first = torch.tensor([turn.prompt - 1 for turn in turns])[:, None]
        places = (first + torch.arange(longest)[None, :]).clamp(max=width - 1)
        chosen = logits[torch.arange(len(turns))[:, None], places]
        nll = functional.cross_entropy(
            chosen.reshape(-1, chosen.shape[-1]), targets.reshape(-1), reduction="none", ignore_index=_IGNORED
        ).reshape(targets.shape)
        factors = torch.tensor([turn.advantage * turn.scale for turn in turns])[:, None]
        return (factors * nll).sum()


def turn_sequences(samples: Sequence[Sample]) -> list[TurnSequence]:
    """Every turn of every episode, in order."""
    return [
        TurnSequence(
            ids=prompt + completion,
            prompt=len(prompt),
            advantage=float(sample.advantages[len(prompt)]),
            scale=1.0 / (len(samples) * sample.loss_tokens),
        )
        for sample in samples
        for prompt, completion in turns_of(sample)
    ]
