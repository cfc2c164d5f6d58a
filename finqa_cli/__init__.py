"""Evaluate and train LLM agents on financial question answering in sandboxes."""

__version__ = "0.1.0"
