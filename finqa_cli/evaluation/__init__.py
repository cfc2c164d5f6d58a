"""Evaluation of policies: play, score, report and compare."""
