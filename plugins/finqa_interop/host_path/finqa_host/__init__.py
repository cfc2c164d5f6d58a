"""Runs environments of other libraries in their own interpreter; imports nothing of finqa."""
