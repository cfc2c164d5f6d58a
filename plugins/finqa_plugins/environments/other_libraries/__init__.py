"""Environments of verifiers and tasks of Inspect, played unmodified in an interpreter that has the library."""
