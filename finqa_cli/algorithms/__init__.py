"""From graded trajectories to packed batches: credit, advantages, losses, samples, packing. Pure; no torch.

Import from the modules, so that code that only names a rule or a loss loads nothing else.
"""
