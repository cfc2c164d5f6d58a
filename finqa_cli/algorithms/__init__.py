"""From graded trajectories to packed batches: credit, advantages, losses, samples, packing. Pure; no torch.

Import from the modules: what only names a rule or a loss then loads no more than that.
"""
