"""Environments: they set tasks, execute the calls of a policy and score its attempts."""
