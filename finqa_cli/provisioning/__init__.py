"""Preparation of runs: images of snapshots at providers, and virtual environments of components."""
