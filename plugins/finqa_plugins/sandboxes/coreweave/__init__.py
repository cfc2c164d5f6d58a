"""Boxes in CoreWeave's sandbox service."""
