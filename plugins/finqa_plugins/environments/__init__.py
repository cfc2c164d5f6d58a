"""Environments: what asks tasks and judges attempts."""
