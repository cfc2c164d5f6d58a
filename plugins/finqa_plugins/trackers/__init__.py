"""Copies of a run's metrics for TensorBoard and Weights & Biases."""
