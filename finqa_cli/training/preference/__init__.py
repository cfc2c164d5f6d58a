"""Preference learning: building pairs of attempts, and training on them."""
