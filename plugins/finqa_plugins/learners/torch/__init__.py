"""The PyTorch learner: LoRA or full training on one or several devices."""
