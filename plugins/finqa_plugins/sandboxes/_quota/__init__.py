"""Limits the sandbox creates of a cloud account in any window of time, over all processes that use the account."""
