"""Engines and learners on the nodes of a Ray cluster."""
