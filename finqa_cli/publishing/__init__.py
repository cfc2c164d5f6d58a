"""Policies and records for other tools: export, push, model cards."""
