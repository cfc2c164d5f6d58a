"""Boxes in the Daytona cloud."""
