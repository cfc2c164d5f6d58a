"""Environments of verifiers and tasks of Inspect, run unmodified in an interpreter that has the library."""
