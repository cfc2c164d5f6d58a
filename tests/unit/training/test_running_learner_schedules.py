from __future__ import annotations

from finqa_cli.settings import Settings
from finqa_cli.training.running_learner import apply_schedule, schedule_steps
from finqa_cli.types import Passes


def test_all_steps_of_all_iterations_are_planned() -> None:
    settings = Settings.model_validate({"train": {"schedule": "linear", "warmup_share": 0.1, "iterations": 5}})
    found = apply_schedule(settings, Passes(epochs=2, minibatches=3))
    assert found.learner.options == {"schedule": "linear", "warmup_steps": 3, "total_steps": 30}


def test_training_on_a_file_is_at_temperature_1_and_its_learner_may_say_otherwise_about_the_rate() -> None:
    chosen = {"generation": {"temperature": 0.7}, "learner": {"name": "torch", "options": {"warmup_steps": 4}}}
    found = schedule_steps(Settings.model_validate(chosen), "cosine", warmup_share=0.1, steps=20)
    assert found.learner.options == {"schedule": "cosine", "warmup_steps": 4, "total_steps": 20}
    assert found.generation.temperature == 1.0
