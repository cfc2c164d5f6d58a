"""Simulation of runs with many sandboxes in virtual time."""
