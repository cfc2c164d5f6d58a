"""From graded trajectories to packed batches: credit, advantages, losses, samples, packing. Pure; no torch.

Import from the single modules: this package re-exports nothing, so that naming a rule or a loss loads nothing else.
"""
