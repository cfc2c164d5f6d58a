"""Executions in sandboxes: the program that isolates a command in a sandbox, and the messages exchanged with it."""
