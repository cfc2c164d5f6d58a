"""Engines: components that generate completions."""
