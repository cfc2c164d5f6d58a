"""Reinforcement learning: the training loop, updates, weight sync, and checks before and during training."""
