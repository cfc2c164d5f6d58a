"""Reinforcement learning: the loop, its rollouts, updates and weight sync."""
