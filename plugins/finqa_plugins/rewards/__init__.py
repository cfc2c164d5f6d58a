"""Rewards: what judges an answer, chosen with `--reward`."""
