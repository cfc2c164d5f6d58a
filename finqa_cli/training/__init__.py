"""Training: reinforcement learning, supervised fine-tuning and preference learning, with their common parts."""
