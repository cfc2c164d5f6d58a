"""Sandboxes in CoreWeave's sandbox service."""
