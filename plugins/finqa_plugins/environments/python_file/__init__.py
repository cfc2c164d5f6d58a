"""Environments that are one Python file or one class of a user: no package, no registration."""
