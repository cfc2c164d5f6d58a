"""Sandbox providers, and execution of code inside sandboxes."""
