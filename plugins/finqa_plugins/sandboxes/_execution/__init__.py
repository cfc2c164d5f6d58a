"""Executions in remote boxes: the program that isolates one there, and what is exchanged with it."""
