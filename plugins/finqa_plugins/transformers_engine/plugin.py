"""Registers the `transformers` engine."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """One token engine."""
    return [
        Component(
            kind="engine",
            name="transformers",
            target="finqa_plugins.transformers_engine.engine:TransformersEngine",
            config="finqa_plugins.transformers_engine.config:TransformersEngineConfig",
            summary="Hugging Face transformers on one CPU or CUDA device; batches, KV reuse, adapter hot swap",
            requires=("torch", "transformers", "safetensors"),
            extra="train",
            devices="one",
            sleeps=True,
        )
    ]
