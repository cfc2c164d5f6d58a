"""Registers the `transformers` engine."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The `transformers` engine."""
    return [
        Component(
            kind="engine",
            name="transformers",
            target="finqa_plugins.engines.transformers.transformers_engine:TransformersEngine",
            config="finqa_plugins.engines.transformers.config:TransformersEngineConfig",
            summary="Hugging Face transformers on one CPU or CUDA device; batches, KV reuse, adapter hot swap",
            requires=("torch", "transformers", "safetensors"),
            extra="train",
            devices="one",
            threads="threads",
            sleeps=True,
        )
    ]
