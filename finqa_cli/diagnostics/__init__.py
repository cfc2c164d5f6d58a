"""Diagnostics: the machine, the model, sandboxes that were left behind."""
