"""Pipelines and experiments: steps that are finqa commands, recorded and resumable."""
