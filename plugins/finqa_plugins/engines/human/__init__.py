"""The human engine: a person plays an episode at the terminal."""
