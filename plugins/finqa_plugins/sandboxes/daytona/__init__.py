"""Sandboxes in the Daytona cloud."""
