"""Training methods as pure functions."""
