"""Preparation of runs: snapshots, images at providers, environments of components."""
