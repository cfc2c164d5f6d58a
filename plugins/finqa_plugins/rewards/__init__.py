"""Rewards: components that judge an answer, chosen with `--reward`."""
