"""Copies of a run's metrics for TensorBoard, Weights & Biases and trackio, and a plot of its rewards."""
