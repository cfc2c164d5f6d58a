"""Comparisons of evaluated runs: tests, plots and reports."""
