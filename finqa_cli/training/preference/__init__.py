"""Preference learning: pairs of attempts, and training on them."""
