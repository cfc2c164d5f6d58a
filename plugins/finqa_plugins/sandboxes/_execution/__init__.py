"""Executions in sandboxes: the program that isolates a command there, and the messages exchanged with it."""
