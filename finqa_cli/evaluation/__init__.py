"""Evaluations of policies: played, scored, reported and compared."""
