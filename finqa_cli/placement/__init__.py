"""Placement of engine and learner: one plan from the machine or cluster, the model and the settings."""
