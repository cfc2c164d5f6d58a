"""Diagnostics: checks of the machine, the model and the cluster, and sandboxes that were left behind."""
