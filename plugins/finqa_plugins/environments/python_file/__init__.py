"""Environments from one Python file or class of a user, without package or registration."""
